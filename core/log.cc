#include "core/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>

#include "core/error.h"

namespace vcas {

LogLevel log_level() {
  constexpr std::string_view kNames[] = {"error", "warning", "info", "debug"};
  const char* text = std::getenv("VCAS_LOG_LEVEL");
  if (text == nullptr || *text == '\0') return LogLevel::kInfo;
  const auto found = std::ranges::find(kNames, std::string_view(text));
  if (found == std::end(kNames))
    throw Error(ExitCode::kBadConfig, fmt::format("VCAS_LOG_LEVEL=\"{}\" is not one of: {}", text,
                                                  fmt::join(kNames, ", ")));
  return static_cast<LogLevel>(found - std::begin(kNames));
}

void write_stderr(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void log_line(LogLevel level, std::string_view line) {
  if (level <= log_level()) write_stderr(fmt::format("{}\n", line));
}

}  // namespace vcas
