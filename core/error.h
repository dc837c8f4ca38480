// Errors a user can act on. Library code throws; only tools/ print and exit.
#pragma once

#include <stdexcept>
#include <string>

namespace vcas {

// Exit codes of the programs: sysexits.h meanings, with 70 and 71 narrowed (docs/commands.md).
enum class ExitCode : int {
  kDone = 0,
  kInternal = 1,       // a bug in vcas, or in a part linked beside it
  kUsage = 2,          // wrong command line
  kBadData = 65,       // a data file is not what its format says
  kNoInput = 66,       // a file is missing or unreadable
  kUnavailable = 69,   // device or library not available
  kDiverged = 70,      // NaN or Inf in training; last good checkpoint kept
  kOutOfMemory = 71,   // host or GPU memory
  kCannotCreate = 73,  // an output cannot be created
  kIoError = 74,       // reading or writing failed, disk full
  kStopped = 75,       // stopped by a signal after a clean save
  kBadConfig = 78,     // configuration error
  kInterrupted = 130,  // second Ctrl-C: no save
};

// `what()` holds what happened, where (file:line:column, tensor, row) and why, without the word
// "error". `hint()` says what to do and may be empty.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message, std::string hint = {})
      : std::runtime_error(message), code_(code), hint_(std::move(hint)) {}

  ExitCode code() const noexcept { return code_; }
  const std::string& hint() const noexcept { return hint_; }

 private:
  ExitCode code_;
  std::string hint_;
};

// Thrown by VCAS_CHECK: a precondition that the library or a linked part has broken, never the
// user's fault.
class InternalError : public Error {
 public:
  explicit InternalError(const std::string& message)
      : Error(ExitCode::kInternal, message,
              "this is a bug in vcas, or in a part linked beside it; please report it") {}
};

[[noreturn]] void fail_check(const char* file, int line, const char* condition,
                             const std::string& message);

}  // namespace vcas

// Always on: the checks guard interfaces, not inner loops. The message is evaluated on failure
// only.
#define VCAS_CHECK(condition, message)                                               \
  do {                                                                               \
    if (!(condition)) ::vcas::fail_check(__FILE__, __LINE__, #condition, (message)); \
  } while (false)
