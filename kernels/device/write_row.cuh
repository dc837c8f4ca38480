// Kernels that write a matrix row by row, one block a row, and the norms of the rows with it.
#pragma once

#include "kernels/device/neighbours.cuh"
#include "kernels/device/reduce.cuh"

namespace vcas::VCAS_DEVICE {

// y[r, c ...] = values(c) for every kNeighbours-th column c, by one block; and y_norm[r], which is
// optional. kAligned: the rows of y lie on packs.
template <bool kAligned = false, class T, class Values>
__device__ void write_row(T* y, Compute<T>* y_norm, std::int64_t r, int width,
                          const Values& values) {
  using C = Compute<T>;
  double squares = 0;
  T* const row = y + r * width;
  const int step = static_cast<int>(blockDim.x) * kNeighbours;
  for (int c = static_cast<int>(threadIdx.x) * kNeighbours; c < width; c += step) {
    const Neighbours<C> out = values(c);
    store_neighbours<kAligned>(row, c, width, out);
    if (y_norm) squares += sum_of_squares<kAligned>(out, c, width);
  }
  if (!y_norm) return;
  squares = block_sum(squares);
  if (threadIdx.x == 0) y_norm[r] = norm_from_squares<C>(squares);
}

inline Grid one_block_a_row(const Tensor& rows) {
  const std::int64_t threads = ceil_div(ceil_div(rows.width(), kNeighbours), kWarp) * kWarp;
  return {extent(rows.rows()), extent(std::clamp<std::int64_t>(threads, kWarp, kThreads))};
}

}  // namespace vcas::VCAS_DEVICE
