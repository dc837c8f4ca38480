// The mask that dropout draws for rows (kernels/ops/elementwise.h): a draw for four neighbours.
#pragma once

#include "kernels/device/neighbours.cuh"
#include "kernels/dropout.h"

namespace vcas::VCAS_DEVICE {

template <class C>
struct RowDropout {
  std::uint32_t threshold;  // dropout_threshold; 0 = none
  C keep_scale;             // 1 / (1 - p)
  StepKey key;
};

template <class C>
RowDropout<C> row_dropout(double p, const StepKey& key) {
  return {dropout_threshold(p), static_cast<C>(1 / (1 - p)), key};
}

// The mask of one row, which has its number in the full batch.
template <class C>
class RowMask {
 public:
  __device__ RowMask(const RowDropout<C>& dropout, std::int64_t row, int width)
      : threshold_(dropout.threshold),
        keep_scale_(dropout.keep_scale),
        address_(dropout.key.address()),
        first_draw_(row * ((width + kNeighbours - 1) / kNeighbours)) {}

  // Drops among the neighbours at column c, and scales the others.
  __device__ void apply(Neighbours<C>& of, int c) const {
    static_assert(kNeighbours == sizeof(Words) / sizeof(std::uint32_t));
    if (threshold_ == 0) return;
    const Words words =
        philox_words(address_, static_cast<std::uint64_t>(first_draw_ + c / kNeighbours));
    for (int i = 0; i < kNeighbours; ++i)
      of.value[i] = of.value[i] * ((words.word[i] >> 9) >= threshold_ ? keep_scale_ : C(0));
  }

 private:
  std::uint32_t threshold_;
  C keep_scale_;
  PhiloxAddress address_;
  std::int64_t first_draw_;
};

}  // namespace vcas::VCAS_DEVICE
