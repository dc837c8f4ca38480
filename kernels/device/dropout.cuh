// The mask that dropout draws for rows (kernels/ops/elementwise.h): a draw for four neighbours and
// the four that lie kDropoutColumns behind them.
#pragma once

#include "kernels/device/neighbours.cuh"
#include "kernels/dropout.h"

namespace vcas::VCAS_DEVICE {

template <class C>
struct RowDropout {
  std::uint32_t threshold;  // dropout_threshold; 0 = none
  C keep_scale;             // 1 / (1 - p)
  StepKey key;
  PhiloxKeys keys;
};

template <class C>
RowDropout<C> row_dropout(double p, const StepKey& key) {
  return {dropout_threshold(p), static_cast<C>(dropout_scale(p)), key, key.keys()};
}

// The mask of one row, which has its number in the full batch.
template <class C>
class RowMask {
 public:
  __device__ RowMask(const RowDropout<C>& dropout, std::int64_t row, int width)
      : dropout_(dropout),
        address_(dropout.key.address()),
        first_draw_(row * ((width + kBlock - 1) / kBlock * kDraws)) {}

  // Drops among the neighbours at column c, and scales the others. With kHeld for_lane_columns
  // counts them k: every second ones have the high halves of the words of the last.
  template <bool kHeld = false>
  __device__ void apply(Neighbours<C>& of, int c, int k = 0) {
    static_assert(kDropoutColumns == kWarp * kNeighbours);
    static_assert(kNeighbours == sizeof(Words) / sizeof(std::uint32_t));
    if (dropout_.threshold == 0) return;
    const bool high = (kHeld ? k : c / kDropoutColumns) % 2;
    if (!kHeld || !high)
      words_ = philox_words(address_, dropout_.keys,
                            static_cast<std::uint64_t>(first_draw_ + c / kBlock * kDraws +
                                                       c % kDropoutColumns / kNeighbours));
    for (int i = 0; i < kNeighbours; ++i)
      of.value[i] =
          of.value[i] *
          (dropout_keeps(words_.word[i], high, dropout_.threshold) ? dropout_.keep_scale : C(0));
  }

 private:
  static constexpr int kBlock = 2 * kDropoutColumns, kDraws = kDropoutColumns / kNeighbours;
  const RowDropout<C>& dropout_;
  PhiloxAddress address_;
  std::int64_t first_draw_;
  Words words_{};
};

}  // namespace vcas::VCAS_DEVICE
