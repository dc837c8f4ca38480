// Sums over the ranks, and what one of them has for all, of tensors on a device.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace vcas {

// Part r of a tensor of n elements is rank r's: [r * n / ranks, (r + 1) * n / ranks).
// n is a multiple of kPartElements * ranks, so parts lie as well as the tensor does.
constexpr std::int64_t kPartElements = 16;

inline Tensor part_of(const Tensor& x, std::int64_t rank, std::int64_t ranks) {
  const std::int64_t count = x.elements() / ranks;
  return x.range(rank * count, (rank + 1) * count);
}
inline void check_parts(const Tensor& x, std::int64_t ranks) {
  VCAS_CHECK(x.elements() % (kPartElements * ranks) == 0,
             "a tensor of " + std::to_string(x.elements()) + " elements has no equal parts");
}
inline void check_terms(const Tensor& x, DType wire) {
  VCAS_CHECK(x.dtype == DType::kF32 || x.dtype == DType::kF64, "a sum over ranks is of f32 or f64");
  VCAS_CHECK(wire == x.dtype || (wire == DType::kBF16 && x.dtype == DType::kF32),
             "terms of a sum over ranks have its type or bf16");
}

// Made by Ops::make_exchange. Ends before its Ops. All ranks call the same in the same order.
// With one rank the first two change nothing.
// A body of Ops::repeat may begin: then each repetition begins.
// Throws Error(kUnavailable) if another rank cannot be reached.
class Exchange {
 public:
  virtual ~Exchange() = default;

  // These two begin after the operations called so far.
  // They run beside those called next, none of which may touch x, until `end`.

  // The own part of x becomes the sum of this part over the ranks. The others stay as they are.
  // x: S. Terms are added in the order of ranks, in S, so the sum has the same bits in each run.
  // `wire`: the type of x, or bf16: each term is rounded once, the own one too.
  virtual void begin_sum_parts(const Tensor& x, DType wire) = 0;
  // Each part of x becomes what its rank has. x: any type.
  virtual void begin_gather_parts(const Tensor& x) = 0;
  // Operations called next see all that has begun.
  virtual void end() = 0;

  // After the operations called so far, and before those called next: each of `numbers`, f32 or
  // f64 [n], any n, becomes `factor` times the sum over the ranks, in their order.
  // The bits are the same on all ranks. Nothing may have begun.
  virtual void sum(const Tensor& numbers, double factor = 1) = 0;

  // Gives up what has begun, before this process ends. Another thread may call it, while this one
  // waits for a rank that does not come.
  virtual void abort() {}
};

}  // namespace vcas
