// Signals that ask a run to save. The handlers only set flags. The trainer polls them.
#pragma once

#include <signal.h>

#include <array>

namespace vcas {

// While it lives: SIGINT, SIGTERM, SIGHUP and SIGUSR2 ask for a save and an end.
// SIGUSR1 asks for a save. A SIGHUP that nohup ignores stays ignored.
// The second SIGINT ends the process at once with code 130.
// Signals belong to the process, so only one object lives at a time.
class SignalHandlers {
 public:
  SignalHandlers();
  ~SignalHandlers();
  SignalHandlers(const SignalHandlers&) = delete;
  SignalHandlers& operator=(const SignalHandlers&) = delete;

 private:
  std::array<struct sigaction, 5> before_;
};

int stop_signal();  // the signal that asked to stop, 0 if none did
// For work before there is anything to save: throws Error(kStopped) once a signal asked to stop.
void stop_if_asked();
int save_requests();  // SIGUSR1 so far

}  // namespace vcas
