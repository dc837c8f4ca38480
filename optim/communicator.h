// The processes that train one model together, each on items of its own.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops.h"

namespace vcas {

// As it stands: one process. Another kind overrides all of it.
// All ranks call the same in the same order. A sum has the same bits on all of them.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::int64_t rank() const { return 0; }  // below size()
  virtual std::int64_t size() const { return 1; }
  // Puts the sum over the ranks in the place of each number.
  virtual void sum(std::span<double> /*numbers*/) {}
  // The same on the device of `ops`, after the operations called so far.
  virtual void sum(Ops& /*ops*/, const Tensor& /*x*/) {}
};

}  // namespace vcas
