// Four neighbours at a time: what threads read and write at once, so that enough is on its way.
#pragma once

#include <climits>
#include <initializer_list>

#include "kernels/device/launch.cuh"

namespace vcas::VCAS_DEVICE {

constexpr int kNeighbours = 4;

// Neighbours of a row, as they are computed.
template <class C>
struct Neighbours {
  C value[kNeighbours];
};

// As they lie in memory, where one instruction reads or writes them: in words, or a thread would
// take four bf16 apart, and wait for them, before it goes on to the next load.
template <class T>
struct alignas(kNeighbours * sizeof(T) < 16 ? kNeighbours * sizeof(T) : 16)
    [[gnu::may_alias]] Packed {
  std::uint32_t word[kNeighbours * sizeof(T) / 4];

  __device__ T get(int i) const {
    T value;
    if constexpr (sizeof(T) == 2) {
      const auto bits = static_cast<std::uint16_t>(word[i / 2] >> i % 2 * 16);
      memcpy(static_cast<void*>(&value), &bits, sizeof value);
    } else {
      memcpy(&value, word + i * sizeof(T) / 4, sizeof value);
    }
    return value;
  }
  // Where there are zeros.
  __device__ void put(int i, T value) {
    if constexpr (sizeof(T) == 2) {
      std::uint16_t bits;
      memcpy(&bits, &value, sizeof bits);
      word[i / 2] |= std::uint32_t{bits} << i % 2 * 16;
    } else {
      memcpy(word + i * sizeof(T) / 4, &value, sizeof value);
    }
  }
};

template <class T>
__device__ bool is_packed(const T* at, int count) {
  return count >= kNeighbours && reinterpret_cast<std::uintptr_t>(at) % alignof(Packed<T>) == 0;
}

// row[c], row[c + 1] ...; zeros beyond the width.
template <class T>
__device__ Packed<T> load_packed(const T* row, int c, int width) {
  Packed<T> packed{};
  if (is_packed(row + c, width - c))
    packed = *reinterpret_cast<const Packed<T>*>(row + c);
  else
    for (int i = 0; i < kNeighbours && c + i < width; ++i) packed.put(i, row[c + i]);
  return packed;
}
// Of a row that lies on packs, all of whose neighbours are inside: no branch, so that several loads
// are on their way together.
template <class T>
__device__ Packed<T> load_aligned(const T* from) {
  return *reinterpret_cast<const Packed<T>*>(from);
}
template <class T>
__device__ Neighbours<Compute<T>> unpack(const Packed<T>& packed) {
  Neighbours<Compute<T>> out;
  for (int i = 0; i < kNeighbours; ++i) out.value[i] = static_cast<Compute<T>>(packed.get(i));
  return out;
}
template <class T>
__device__ Neighbours<Compute<T>> load_neighbours(const T* row, int c, int width) {
  return unpack(load_packed(row, c, width));
}

template <class T>
__device__ void store_neighbours(T* row, int c, int width, const Neighbours<Compute<T>>& values) {
  Packed<T> packed{};
  for (int i = 0; i < kNeighbours; ++i) packed.put(i, static_cast<T>(values.value[i]));
  if (is_packed(row + c, width - c))
    *reinterpret_cast<Packed<T>*>(row + c) = packed;
  else
    for (int i = 0; i < kNeighbours && c + i < width; ++i) row[c + i] = packed.get(i);
}

// body(first, count) for this thread's share of [0, n): `count` neighbours from `first` on.
template <class Body>
__device__ void for_each_neighbours(std::int64_t n, const Body& body) {
  for_each_element((n + kNeighbours - 1) / kNeighbours, [&](std::int64_t i) {
    const std::int64_t first = i * kNeighbours;
    body(first, static_cast<int>(min(std::int64_t{kNeighbours}, n - first)));
  });
}
inline Grid grid_over_neighbours(const Context& context, std::int64_t n) {
  return grid_over(context, ceil_div(n, kNeighbours));
}

// body(k, c) for every column c where neighbours of the running lane begin, k counting them. With
// kHeld there are at most so many, and k is a constant once the loop is unrolled.
template <int kHeld, class Body>
__device__ void for_lane_columns(int width, const Body& body) {
  const int first = lane_of_thread() * kNeighbours;
  constexpr int kStep = kWarp * kNeighbours;
  if constexpr (kHeld > 0) {
    VCAS_UNROLL
    for (int k = 0; k < kHeld; ++k)
      if (first + k * kStep < width) body(k, first + k * kStep);
  } else {
    for (int c = first; c < width; c += kStep) body(0, c);
  }
}

// A row that a warp goes over several times. With kHeld it lies on packs, is read once, all of it
// on its way together, and stays in registers; else each pass reads it.
template <class T, int kHeld>
class WarpRow {
 public:
  using C = Compute<T>;
  __device__ WarpRow(const T* row, int width) : row_(row), width_(width) {
    if constexpr (kHeld > 0)
      for_lane_columns<kHeld>(width, [&](int k, int c) { held_[k] = load_aligned(row + c); });
  }
  // As of for_lane_columns; zeros beyond the width.
  __device__ Neighbours<C> at(int k, int c) const {
    if constexpr (kHeld > 0) return unpack(held_[k]);
    return load_neighbours(row_, c, width_);
  }

 private:
  const T* row_;
  int width_;
  Packed<T> held_[kHeld > 0 ? kHeld : 1];
};

// Whether rows of `width`, `stride` apart, lie on packs and are as wide as several.
inline bool lie_on_packs(const void* rows, std::int64_t width, std::int64_t stride) {
  return width % kNeighbours == 0 && stride % kNeighbours == 0 &&
         reinterpret_cast<std::uintptr_t>(rows) % alignof(Packed<float>) == 0;
}

// f(constant kHeld) for rows of the tensors, of one width.
template <class T, class F>
void with_held(std::initializer_list<const Tensor*> tensors, const F& f) {
  constexpr int kMostHeld = 8;
  const auto fits = [](const Tensor* rows) {
    const std::int64_t width = rows->width();
    return width <= kMostHeld * kWarp * kNeighbours && lie_on_packs(rows->data, width, width);
  };
  if constexpr (!std::is_same_v<T, double>)
    if (std::ranges::all_of(tensors, fits)) return f(Constant<kMostHeld>{});
  f(Constant<0>{});
}

// A row is counted in int, up to the last step beyond it.
inline int width_of(const Tensor& rows) {
  VCAS_CHECK(rows.width() <= INT_MAX - kThreads * kNeighbours, "rows of " + rows.shape.text());
  return static_cast<int>(rows.width());
}

}  // namespace vcas::VCAS_DEVICE
