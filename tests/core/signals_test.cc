#include "core/signals.h"

#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "tests/support/catch.h"

using namespace vcas;

namespace {

int status_of_child(const std::function<void()>& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    action();
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

}  // namespace

TEST_CASE("signals: a stop is asked for once, a save each time", "[signals]") {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR2, SIGHUP}) {
    const SignalHandlers handlers;
    CHECK(stop_signal() == 0);
    CHECK(save_requests() == 0);
    ::raise(SIGUSR1);
    CHECK(save_requests() == 1);
    ::raise(SIGUSR1);
    CHECK(save_requests() == 2);
    CHECK(stop_signal() == 0);
    ::raise(signal);
    ::raise(SIGTERM);
    CHECK(stop_signal() == signal);
  }
}

TEST_CASE("signals: a hangup that nohup ignores stays ignored", "[signals]") {
  const int status = status_of_child([] {
    ::signal(SIGHUP, SIG_IGN);
    const SignalHandlers handlers;
    ::raise(SIGHUP);
    ::_exit(stop_signal());
  });
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("signals: the second interrupt ends the process at once", "[signals]") {
  const int status = status_of_child([] {
    const SignalHandlers handlers;
    ::raise(SIGTERM);
    ::raise(SIGINT);
    ::raise(SIGINT);
  });
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 130);
}

TEST_CASE("signals: the old handlers come back", "[signals]") {
  const int status = status_of_child([] {
    ::signal(SIGTERM, SIG_DFL);
    { const SignalHandlers handlers; }
    ::raise(SIGTERM);
  });
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGTERM);
}
