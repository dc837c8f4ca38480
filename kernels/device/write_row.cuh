// Kernels that write a matrix row by row, and the norms of the rows with it: one block a row, or
// where rows are short several of them.
#pragma once

#include <bit>

#include "kernels/device/neighbours.cuh"
#include "kernels/device/reduce.cuh"

namespace vcas::VCAS_DEVICE {

// The row of the running thread in `grid_of_writers`, perhaps beyond the last one.
__device__ inline std::int64_t row_of_writer() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
}

// The same result in every thread of a row: those of a block, or with blockDim.x up to a warp of a
// part of one. All threads of the block take part.
__device__ inline double sum_over_row(double value) {
  if (blockDim.x > kWarp) return block_sum(value);
  for (int distance = static_cast<int>(blockDim.x) / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(kAllLanes, value, distance);
  return value;
}

// y[r, c ...] = values(c) for every kNeighbours-th column c, by the threads of a row; and
// y_norm[r], which is optional. kAligned: the rows of y lie on packs. Where the row is not `inside`
// nothing.
template <bool kAligned = false, class T, class Values>
__device__ void write_row(T* y, Compute<T>* y_norm, std::int64_t r, int width, const Values& values,
                          bool inside = true) {
  using C = Compute<T>;
  double squares = 0;
  T* const row = y + r * width;
  const int step = static_cast<int>(blockDim.x) * kNeighbours;
  const int end = inside ? width : 0;
  for (int c = static_cast<int>(threadIdx.x) * kNeighbours; c < end; c += step) {
    const Neighbours<C> out = values(c);
    store_neighbours<kAligned>(row, c, width, out);
    if (y_norm) squares += sum_of_squares<kAligned>(out, c, width);
  }
  if (!y_norm) return;
  squares = sum_over_row(squares);
  if (inside && threadIdx.x == 0) y_norm[r] = norm_from_squares<C>(squares);
}

inline Grid one_block_a_row(const Tensor& rows) {
  const std::int64_t threads = ceil_div(ceil_div(rows.width(), kNeighbours), kWarp) * kWarp;
  return {extent(rows.rows()), extent(std::clamp<std::int64_t>(threads, kWarp, kThreads))};
}

// Threads (of a row, rows).
inline Grid grid_of_writers(const Tensor& rows) {
  const std::int64_t neighbours = std::max<std::int64_t>(ceil_div(rows.width(), kNeighbours), 1);
  if (neighbours > kWarp) return one_block_a_row(rows);
  const auto across = static_cast<std::int64_t>(std::bit_ceil(static_cast<unsigned>(neighbours)));
  return {extent(ceil_div(rows.rows(), kThreads / across)), extent(across, kThreads / across)};
}

}  // namespace vcas::VCAS_DEVICE
