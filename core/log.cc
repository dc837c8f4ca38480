#include "core/log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>

#include "core/error.h"
#include "core/files.h"

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
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
    const bool is_c0 = (byte(i) < ' ' && text[i] != '\n' && text[i] != '\t') || byte(i) == 0x7f;
    // U+0080 to U+009F in UTF-8.
    const bool is_c1 =
        byte(i) == 0xc2 && i + 1 < text.size() && 0x80 <= byte(i + 1) && byte(i + 1) < 0xa0;
    if (is_c1) ++i;
    if (is_c0 || is_c1)
      fmt::format_to(std::back_inserter(shown), "\\x{:02x}", byte(i));
    else
      shown += text[i];
  }
  return shown;
}

namespace {

// A terminal that has room for a byte waits for that of all. A second opening need not.
FileDescriptor without_waiting(int file) {
  if (::isatty(file) == 0) return FileDescriptor(-1);
  return open_file(fmt::format("/proc/self/fd/{}", file), O_WRONLY | O_NOCTTY | O_NONBLOCK);
}

}  // namespace

void write_if_room(std::FILE* out, std::string_view text) {
  static std::atomic<bool> is_stuck = false;
  constexpr int kTries = 100, kMilliseconds = 10;
  const FileDescriptor terminal = without_waiting(::fileno(out));
  pollfd ready{
      .fd = terminal.get() >= 0 ? terminal.get() : ::fileno(out), .events = POLLOUT, .revents = 0};
  for (int tries = is_stuck ? 1 : kTries; tries > 0 && !text.empty(); --tries) {
    if (::poll(&ready, 1, is_stuck ? 0 : kMilliseconds) <= 0) continue;
    // A pipe with any room takes as much as this without waiting.
    const ssize_t written =
        ::write(ready.fd, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
    if (written > 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
      tries = kTries;
    } else if (errno == EAGAIN) {  // room for less than a line end
      ::poll(nullptr, 0, is_stuck ? 0 : kMilliseconds);
    } else if (errno != EINTR) {
      return;
    }
  }
  is_stuck = !text.empty();
}

void write_stderr(std::string_view text) { write_if_room(stderr, printable(text)); }

void log_line(LogLevel level, std::string_view line) {
  if (level <= log_level()) write_stderr(fmt::format("{}\n", line));
}

void log_warning(std::string_view text) {
  log_line(LogLevel::kWarning, fmt::format("warning: {}", text));
}

}  // namespace vcas
