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

std::string printable(std::string_view text) {
  std::string shown;
  for (const char c : text) {
    const bool commands = (c >= 0 && c < ' ' && c != '\n' && c != '\t') || c == '\x7f';
    if (commands)
      fmt::format_to(std::back_inserter(shown), "\\x{:02x}", c);
    else
      shown += c;
  }
  return shown;
}

void write_stderr(std::string_view text) {
  const std::string shown = printable(text);
  std::fwrite(shown.data(), 1, shown.size(), stderr);
  std::fflush(stderr);
}

void log_line(LogLevel level, std::string_view line) {
  if (level <= log_level()) write_stderr(fmt::format("{}\n", line));
}

}  // namespace vcas
