// Which lines go to standard error: VCAS_LOG_LEVEL.
#pragma once

#include <string_view>

namespace vcas {

enum class LogLevel { kError, kWarning, kInfo, kDebug };

// By VCAS_LOG_LEVEL: error, warning, info or debug; info where it is not set. Throws
// Error(kBadConfig) for another word.
LogLevel log_level();

// Writes to standard error what that takes. Where it takes nothing, a run goes on.
void write_stderr(std::string_view text);

// Writes the line to standard error where lines of this level are wanted.
void log_line(LogLevel level, std::string_view line);

}  // namespace vcas
