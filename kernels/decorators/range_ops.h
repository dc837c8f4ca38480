// Tells a profiler which part of the model runs (docs/profiling.md).
#pragma once

#include "kernels/decorators/forwarding_ops.h"

namespace vcas {

// What a profiler of a device is told.
class Profiler {
 public:
  virtual ~Profiler() = default;
  // Ranges of time on the host. One is within the other.
  virtual void push(const std::string& name) = 0;
  virtual void pop() = 0;
  // A profiler that waits for it records between the two.
  virtual void start() = 0;
  virtual void stop() = 0;
};

// The profiler of the device that make_ops calls by this name. Null: it has none.
std::unique_ptr<Profiler> make_profiler(const std::string& device);

// Has a range for each place: "forward/block.7" for the place "block.7/forward".
// It lasts until the next one.
class RangeOps final : public ForwardingOps {
 public:
  RangeOps(std::unique_ptr<Ops> inner, std::unique_ptr<Profiler> profiler);

  void enter(const std::string& place) override;

  // A range around those of places: "step", "eval".
  void begin(const std::string& name);
  void end();
  // The profiler records between the two. Passes are not repeated there: a repetition enters no
  // place.
  void start();
  void stop();

 private:
  void leave();

  std::unique_ptr<Profiler> profiler_;
  bool in_place_ = false;
};

}  // namespace vcas
