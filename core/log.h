// Which lines go to standard error: VCAS_LOG_LEVEL.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace vcas {

enum class LogLevel { kError, kWarning, kInfo, kDebug };

// By VCAS_LOG_LEVEL: error, warning, info or debug; info where it is not set. Throws
// Error(kBadConfig) for another word.
LogLevel log_level();

// Control characters but for LF and tab as \xNN: a name in a file must not command a terminal.
std::string printable(std::string_view text);

// Writes to standard error, or what stands for it. Nothing waits for a reader that has stopped.
// A pipe or terminal without room for a second loses the text.
// Later texts are lost too, until it has room.
void write_if_room(std::FILE* out, std::string_view text);

// Writes the printable text to standard error. Where that takes nothing, a run goes on.
void write_stderr(std::string_view text);

// Writes the line to standard error where lines of this level are wanted.
void log_line(LogLevel level, std::string_view line);
void log_warning(std::string_view text);  // "warning: TEXT"

}  // namespace vcas
