#include "core/signals.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>

#include "core/error.h"

namespace vcas {
namespace {

constexpr std::array<int, 5> kSignals = {SIGINT, SIGTERM, SIGUSR2, SIGUSR1, SIGHUP};

// Handlers can reach nothing but statics.
std::atomic<int> stop_request = 0;
std::atomic<int> save_request_count = 0;
std::atomic<bool> interrupted = false;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void handle(int signal) {
  if (signal == SIGUSR1) {
    ++save_request_count;
    return;
  }
  if (signal == SIGINT && interrupted.exchange(true))
    ::_exit(static_cast<int>(ExitCode::kInterrupted));
  int none = 0;
  stop_request.compare_exchange_strong(none, signal);
}

}  // namespace

SignalHandlers::SignalHandlers() {
  stop_request = 0;
  save_request_count = 0;
  interrupted = false;
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;  // no read or write of a checkpoint fails half-way
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &action, &before_[i]);
  if (before_.back().sa_handler == SIG_IGN) ::sigaction(SIGHUP, &before_.back(), nullptr);
}

SignalHandlers::~SignalHandlers() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
}

int stop_signal() { return stop_request; }

void stop_if_asked() {
  if (const int signal = stop_signal())
    throw Error(
        ExitCode::kStopped,
        fmt::format("stopped by SIG{} before there was anything to save", ::sigabbrev_np(signal)),
        "the same command starts again");
}

int save_requests() { return save_request_count; }

}  // namespace vcas
