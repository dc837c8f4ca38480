// Sums over the ranks of numbers on a device, by way of the host.
#pragma once

#include <vector>

#include "core/ranks.h"
#include "kernels/ops.h"

namespace vcas {

class HostExchange {
 public:
  HostExchange(Ops& ops, Ranks& ranks) : ops_(ops), ranks_(ranks) {}

  // Puts `factor` times the sum over the ranks in the place of each number of x, f32 or f64 [n],
  // after the operations called so far. Terms are added in the order of ranks, in the type of x.
  // So the bits are the same on all ranks and in all runs. One rank alone: x stays as it is.
  void sum(const Tensor& x, double factor = 1);

 private:
  Ops& ops_;
  Ranks& ranks_;
  std::vector<std::byte> mine_, parts_;
};

}  // namespace vcas
