// Kernels that write a matrix row by row, one block a row, and the norms of the rows with it.
#pragma once

#include <climits>

#include "kernels/device/reduce.cuh"

namespace vcas::VCAS_DEVICE {

constexpr int kNeighbours = 4;

// Neighbours of a row, as they are computed.
template <class C>
struct Neighbours {
  C value[kNeighbours];
};

// As they lie in memory, where one instruction reads or writes them.
template <class T>
struct alignas(kNeighbours * sizeof(T) < 16 ? kNeighbours * sizeof(T) : 16) Packed {
  T value[kNeighbours];
};

template <class T>
__device__ bool is_packed(const T* at, int count) {
  return count >= kNeighbours && reinterpret_cast<std::uintptr_t>(at) % alignof(Packed<T>) == 0;
}

// row[c], row[c + 1] ...; zeros beyond the width.
template <class T>
__device__ Neighbours<Compute<T>> load_neighbours(const T* row, int c, int width) {
  Packed<T> packed{};
  if (is_packed(row + c, width - c))
    packed = *reinterpret_cast<const Packed<T>*>(row + c);
  else
    for (int i = 0; i < kNeighbours && c + i < width; ++i) packed.value[i] = row[c + i];
  Neighbours<Compute<T>> out;
  for (int i = 0; i < kNeighbours; ++i) out.value[i] = static_cast<Compute<T>>(packed.value[i]);
  return out;
}

template <class T>
__device__ void store_neighbours(T* row, int c, int width, const Neighbours<Compute<T>>& values) {
  Packed<T> packed;
  for (int i = 0; i < kNeighbours; ++i) packed.value[i] = static_cast<T>(values.value[i]);
  if (is_packed(row + c, width - c))
    *reinterpret_cast<Packed<T>*>(row + c) = packed;
  else
    for (int i = 0; i < kNeighbours && c + i < width; ++i) row[c + i] = packed.value[i];
}

// y[r, c ...] = values(c) for every kNeighbours-th column c, by one block; and y_norm[r], which is
// optional.
template <class T, class Values>
__device__ void write_row(T* y, Compute<T>* y_norm, std::int64_t r, int width,
                          const Values& values) {
  using C = Compute<T>;
  double squares = 0;
  T* const row = y + r * width;
  const int step = static_cast<int>(blockDim.x) * kNeighbours;
  for (int c = static_cast<int>(threadIdx.x) * kNeighbours; c < width; c += step) {
    const Neighbours<C> out = values(c);
    store_neighbours(row, c, width, out);
    if (y_norm)
      for (int i = 0; i < kNeighbours && c + i < width; ++i) squares += squared(out.value[i]);
  }
  if (!y_norm) return;
  squares = block_sum(squares);
  if (threadIdx.x == 0) y_norm[r] = norm_from_squares<C>(squares);
}

// A row is counted in int, up to the last step beyond it.
inline int width_of(const Tensor& rows) {
  VCAS_CHECK(rows.width() <= INT_MAX - kThreads * kNeighbours, "rows of " + rows.shape.text());
  return static_cast<int>(rows.width());
}

inline Grid one_block_a_row(const Tensor& rows) {
  const std::int64_t threads = ceil_div(ceil_div(rows.width(), kNeighbours), kWarp) * kWarp;
  return {extent(rows.rows()), extent(std::clamp<std::int64_t>(threads, kWarp, kThreads))};
}

}  // namespace vcas::VCAS_DEVICE
