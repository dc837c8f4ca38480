// Losses of forwards, kept on the device until the host reads them all at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/decorators/count_ops.h"
#include "models/model.h"

namespace vcas {

class LossQueue {
 public:
  // Of at most `forwards` forwards of `model`, whose graph is finished in `ops`.
  LossQueue(Model& model, CountOps& ops, std::int64_t forwards);

  // Takes the losses and hits of the forward that ran last: the next one overwrites them.
  void add();
  // f64 [1]: a number of the caller's that is read with them.
  Tensor number() const { return buffer_.at(0, DType::kF64, {1}); }

  struct Sums {
    double loss = 0;
    std::int64_t correct = 0;
    double number = 0;
  };
  // Waits once, and leaves the queue empty. Throws Error(kDiverged), naming `what`, when the losses
  // are not finite.
  Sums read(const std::string& what);

  std::size_t bytes() const { return buffer_.bytes(); }

 private:
  Model& model_;
  CountOps& ops_;
  Buffer buffer_;  // the number, then losses and hits of each forward
  std::vector<std::byte> host_;
  std::size_t queued_bytes_ = sizeof(double);
  std::vector<std::int64_t> queued_terms_;  // of each forward
};

}  // namespace vcas
