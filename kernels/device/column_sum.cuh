// Sums of columns by blocks of 8 warps. A block has 128 columns, and each warp rows of its own.
#pragma once

#include "kernels/device/neighbours.cuh"
#include "kernels/device/reduce.cuh"

namespace vcas::VCAS_DEVICE {

constexpr int kColumnThreads = kWarp, kColumnTile = kColumnThreads * kNeighbours, kRowLanes = 8;

// Where the neighbours of the running thread begin.
__device__ inline int column_of_thread() {
  return static_cast<int>(blockIdx.x) * kColumnTile + static_cast<int>(threadIdx.x) * kNeighbours;
}

// Adds a few rows to `sum`.
template <class T, int kCount>
__device__ void add_rows(Neighbours<Compute<T>>& sum, const Packed<T> (&rows)[kCount]) {
  VCAS_UNROLL
  for (const Packed<T>& packed : rows) {
    const auto row = unpack(packed);
    for (int i = 0; i < kNeighbours; ++i) sum.value[i] += row.value[i];
  }
}

// The sum of what the warps have, for the first one.
template <class C>
__device__ Neighbours<C> sum_of_warps(Neighbours<C> own) {
  struct Shared {
    Neighbours<C> sum[kRowLanes][kColumnThreads];
  };
  VCAS_SHARED(Shared, shared);
  shared.sum[threadIdx.y][threadIdx.x] = own;
  __syncthreads();
  if (threadIdx.y > 0) return own;
  for (int warp = 1; warp < kRowLanes; ++warp)
    for (int i = 0; i < kNeighbours; ++i) own.value[i] += shared.sum[warp][threadIdx.x].value[i];
  return own;
}

// The sum of the neighbours at c over every `slices`-th eight rows from 8 `slice` on, for the first
// warp.
template <bool kAligned, class T>
__device__ Neighbours<Compute<T>> sum_of_slice(const T* x, std::int64_t rows, int width, int c,
                                               std::int64_t slice, std::int64_t slices) {
  Neighbours<Compute<T>> own{};
  constexpr int kAtOnce = kAligned ? 8 : 4;
  const std::int64_t step = slices * kRowLanes;
  if (c < width)
    for (std::int64_t first = slice * kRowLanes + threadIdx.y; first < rows;
         first += kAtOnce * step) {
      Packed<T> packed[kAtOnce] = {};
      VCAS_UNROLL
      for (int i = 0; i < kAtOnce; ++i)
        if (const std::int64_t r = first + i * step; r < rows)
          packed[i] = load_packed<kAligned>(x + r * width, c, width);
      add_rows(own, packed);
    }
  return sum_of_warps(own);
}

// out[c] = (or, with `accumulate`, +=) the sum of `own` over the slices. The first warp of each has
// it. `part` is for [slices, width] numbers, `count` one of Context::counts.
template <bool kAligned, class C>
__device__ void sum_over_slices(C* out, C* part, unsigned* count, Neighbours<C> own, int c,
                                int width, std::int64_t slices, bool accumulate) {
  const bool writes = threadIdx.y == 0 && c < width;
  if (slices > 1) {
    if (writes) store_neighbours<kAligned>(part + std::int64_t{blockIdx.y} * width, c, width, own);
    if (!ends_last(count, static_cast<unsigned>(slices))) return;
    own = sum_of_slice<kAligned>(part, slices, width, c, 0, 1);
  }
  if (!writes) return;
  if (accumulate) {
    const auto before = load_neighbours<kAligned>(out, c, width);
    for (int i = 0; i < kNeighbours; ++i) own.value[i] += before.value[i];
  }
  store_neighbours<kAligned>(out, c, width, own);
}

}  // namespace vcas::VCAS_DEVICE
