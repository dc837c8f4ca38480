// Norms of rows and items, the scores that draws go by.
#pragma once

#include "kernels/device/math.cuh"
#include "kernels/device/neighbours.cuh"
#include "kernels/device/places.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/ops/patches.h"

namespace vcas::VCAS_DEVICE {

template <class T>
struct RowFactor {
  const T* x;
  int width;
  const Compute<T>* norm;  // of the parts of each row, optional
  int parts;

  // Whether norms of whole rows are given.
  __host__ __device__ bool has_norms() const { return norm && parts == 1; }
  // By one warp.
  __device__ Compute<T> norm_of(std::int64_t r) const {
    if (has_norms()) return norm[r];
    return norm ? norm_of(norm + r * parts, parts) : norm_of(x + r * width, width);
  }

 private:
  template <class Values>
  __device__ static Compute<T> norm_of(const Values* values, int count) {
    double sum = 0;
    for_lane_columns<0>(
        count, [&](int, int c) { sum += sum_of_squares(load_neighbours(values, c, count).value); });
    return norm_from_squares<Compute<T>>(warp_sum(sum));
  }
};

template <class T>
struct ScoredRows {
  Compute<T>* score;
  RowFactor<T> dy, x_full;
  const std::int32_t* row;
  const std::int64_t* filled;  // how many rows have a score, optional
  std::int64_t rows;
  Patches patches;

  __host__ __device__ bool has_norms() const { return dy.has_norms() && x_full.has_norms(); }
  __device__ std::int64_t count() const { return filled ? *filled : rows; }
  // The norm of a row of x_full, or of its patch, from norm_of(row). Numbers of rows have 32 bits,
  // as `row` has: divisions of 64 would be calls.
  template <class NormOf>
  __device__ Compute<T> x_norm_of(std::int32_t r, const NormOf& norm_of) const {
    if (patches.height == 0) return norm_of(r);
    const ImagePlace place(r, static_cast<std::int32_t>(patches.out_height()),
                           static_cast<std::int32_t>(patches.out_width()));
    const std::int32_t top = place.y * patches.stride - patches.padding;
    const std::int32_t left = place.x * patches.stride - patches.padding;
    const std::int64_t first = place.item * patches.in_rows();
    double squares = 0;
    for (std::int32_t y = max(top, 0); y < min(top + patches.kernel, patches.height); ++y)
      for (std::int32_t x = max(left, 0); x < min(left + patches.kernel, patches.width); ++x)
        squares += squared(norm_of(first + y * patches.width + x));
    return norm_from_squares<Compute<T>>(squares);
  }
};

// score[i] = || dy[i] || || x_full[row[i]] ||; by one warp.
template <class T>
__device__ void score_row(const ScoredRows<T>& of, std::int64_t i) {
  if (i >= of.count()) return;
  const auto x_norm = [&](std::int64_t r) { return of.x_full.norm_of(r); };
  const Compute<T> score =
      of.dy.norm_of(i) * of.x_norm_of(static_cast<std::int32_t>(at(of.row, i)), x_norm);
  if (lane_of_thread() == 0) of.score[i] = score;
}
// By one thread, where norms are given.
template <class T>
__device__ void score_row_by_norms(const ScoredRows<T>& of, std::int64_t i) {
  if (i >= of.count()) return;
  const auto x_norm = [&](std::int64_t r) { return of.x_full.norm[r]; };
  of.score[i] = of.dy.norm[i] * of.x_norm_of(static_cast<std::int32_t>(at(of.row, i)), x_norm);
}

template <class T>
struct ScoredItems {
  Compute<T>* norm;
  const T* x;
  const std::int64_t* offsets;
  const std::int64_t* tokens;
  std::int64_t width;
  unsigned slices;  // of an item: blocks that read it
  double* squares;  // [items, slices]
};

// The squares of a slice, by the block that has it. With kAligned the rows lie on packs.
template <bool kAligned, class T>
__device__ void square_slice(const ScoredItems<T>& of) {
  constexpr int kAtOnce = kAligned ? 4 : 1;
  const std::int64_t n = blockIdx.x / of.slices, slice = blockIdx.x % of.slices;
  const T* const item = of.x + of.offsets[n] * of.width;
  const std::int64_t count = (of.offsets[n + 1] - of.offsets[n]) * of.width;
  const std::int64_t step = std::int64_t{of.slices} * blockDim.x * kNeighbours;
  double sum = 0;
  for (std::int64_t first = (slice * blockDim.x + threadIdx.x) * kNeighbours; first < count;
       first += kAtOnce * step) {
    Packed<T> packed[kAtOnce];
    VCAS_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const std::int64_t left = count - first - i * step;
      const T* const from = item + first + i * step;
      packed[i] = {};
      if constexpr (!kAligned)
        packed[i] = load_packed(from, 0, static_cast<int>(min(left, std::int64_t{kNeighbours})));
      else if (left > 0)
        packed[i] = load_aligned(from);
    }
    for (const Packed<T>& four : packed) sum += sum_of_squares(unpack(four).value);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) of.squares[blockIdx.x] = sum;
}

// The norm of item n from its slices.
template <class T>
__device__ Compute<T> norm_of_slices(const ScoredItems<T>& of, std::int64_t n) {
  constexpr unsigned kAtOnce = 8;
  const double* const squares = of.squares + n * of.slices;
  const std::int64_t cost = of.tokens ? of.tokens[n + 1] - of.tokens[n] : 1;
  double sum = 0;
  VCAS_NO_UNROLL
  for (unsigned first = 0; first < of.slices; first += kAtOnce) {
    double some[kAtOnce];
    VCAS_UNROLL
    for (unsigned i = 0; i < kAtOnce; ++i) some[i] = first + i < of.slices ? squares[first + i] : 0;
    for (const double one : some) sum += one;
  }
  const Compute<T> norm = norm_from_squares<Compute<T>>(sum / static_cast<double>(cost));
  of.norm[n] = norm;
  return norm;
}

}  // namespace vcas::VCAS_DEVICE
