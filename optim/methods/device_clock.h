// Seconds of what a device does.
#pragma once

#include <cstddef>

#include "core/progress.h"
#include "kernels/ops.h"

namespace vcas {

class DeviceClock {
 public:
  // Adds the time since the last call to `seconds`, if it is not null.
  // Reads a byte of `ready`, memory of the device: that waits for all it was given before.
  void lap(Ops& ops, const Tensor& ready, double* seconds) {
    std::byte byte;
    ops.join(Ops::kAllTickets);
    ops.copy_to_host(&byte, ready.data, sizeof byte);
    const double now = monotonic_seconds();
    if (seconds) *seconds += now - last_;
    last_ = now;
  }

 private:
  double last_ = 0;
};

}  // namespace vcas
