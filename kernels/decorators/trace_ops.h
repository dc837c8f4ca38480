// Writes when each operation ran as a Chrome trace (chrome://tracing, ui.perfetto.dev).
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>

#include "kernels/decorators/forwarding_ops.h"

namespace vcas {

// Records the calls between begin() and end(). Both may come again.
// Times are those of the call on the host.
// Readers accept the list of events unfinished. So a crash loses its tail only.
class TraceOps final : public ForwardingOps {
 public:
  // Every trace begins so.
  static constexpr const char* kBegin = "[\n{\"name\":";

  // Throws kCannotCreate if the file cannot be written.
  TraceOps(std::unique_ptr<Ops> inner, std::filesystem::path path);
  ~TraceOps() override;

  void enter(const std::string& place) override;
#define VCAS_OP(Args) void run(const Args& args) override;
  VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

  // Replaces what is in the file, at the first call.
  void begin();
  void end() { sees_each_call_ = false; }
  // Completes the file. Nothing is recorded afterwards.
  // Throws kIoError if something could not be written. The destructor cannot throw it.
  void close();

 private:
  using Clock = std::chrono::steady_clock;

  template <class Args>
  void trace(const Args& args);

  std::filesystem::path path_;
  std::ofstream file_;
  Clock::time_point start_ = Clock::now();
  std::string place_;
  bool begun_ = false, first_event_ = true;
};

}  // namespace vcas
