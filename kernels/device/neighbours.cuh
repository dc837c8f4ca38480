// Four neighbours at a time: what threads read and write at once, so that enough is on its way.
#pragma once

#include <climits>
#include <initializer_list>

#include "kernels/device/launch.cuh"
#include "kernels/device/reduce.cuh"

namespace vcas::VCAS_DEVICE {

constexpr int kNeighbours = 4;

// Neighbours of a row, as they are computed.
template <class C>
struct Neighbours {
  C value[kNeighbours];
};

// Neighbours as they lie in memory, where few instructions read or write them. They are kept in
// words. Else a thread would take four bf16 apart, and wait for them, before the next load.
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

// For a row that lies on packs, all of whose neighbours are inside: no branch, so that several
// loads are on their way together.
template <class T>
__device__ Packed<T> load_aligned(const T* from) {
  return *reinterpret_cast<const Packed<T>*>(from);
}
// row[c], row[c + 1] ...; zeros beyond the width. kAligned: the row is as load_aligned wants it.
template <bool kAligned = false, class T>
__device__ Packed<T> load_packed(const T* row, int c, int width) {
  if (kAligned || is_packed(row + c, width - c)) return load_aligned(row + c);
  Packed<T> packed{};
  for (int i = 0; i < kNeighbours && c + i < width; ++i) packed.put(i, row[c + i]);
  return packed;
}
template <class T>
__device__ Neighbours<Compute<T>> unpack(const Packed<T>& packed) {
  Neighbours<Compute<T>> out;
  for (int i = 0; i < kNeighbours; ++i) out.value[i] = static_cast<Compute<T>>(packed.get(i));
  return out;
}
template <bool kAligned = false, class T>
__device__ Neighbours<Compute<T>> load_neighbours(const T* row, int c, int width) {
  return unpack(load_packed<kAligned>(row, c, width));
}

template <class T>
__device__ Packed<T> pack(const Neighbours<Compute<T>>& values) {
  Packed<T> packed{};
  if constexpr (sizeof(T) == 2)
    for (int i = 0; i < kNeighbours; i += 2)
      packed.word[i / 2] = to_bf16_pair(values.value[i], values.value[i + 1]);
  else
    for (int i = 0; i < kNeighbours; ++i) packed.put(i, values.value[i]);
  return packed;
}
template <bool kAligned = false, class T>
__device__ void store_packed(T* row, int c, int width, const Packed<T>& packed) {
  if (kAligned || is_packed(row + c, width - c))
    *reinterpret_cast<Packed<T>*>(row + c) = packed;
  else
    for (int i = 0; i < kNeighbours && c + i < width; ++i) row[c + i] = packed.get(i);
}
template <bool kAligned = false, class T>
__device__ void store_neighbours(T* row, int c, int width, const Neighbours<Compute<T>>& values) {
  store_packed<kAligned>(row, c, width, pack<T>(values));
}

// For neighbours inside the width.
template <bool kAligned, class C>
__device__ double sum_of_squares(Neighbours<C> of, int c, int width) {
  for (int i = 1; !kAligned && i < kNeighbours; ++i)
    if (c + i >= width) of.value[i] = 0;
  return sum_of_squares(of.value);
}

// body(first, count) for this thread's share of [0, n): `count` neighbours from `first` on.
template <class Body>
__device__ void for_each_neighbours(std::int64_t n, const Body& body) {
  for_each_element((n + kNeighbours - 1) / kNeighbours, [&](std::int64_t i) {
    const std::int64_t first = i * kNeighbours;
    body(first, static_cast<int>(min(std::int64_t{kNeighbours}, n - first)));
  });
}
inline Grid grid_over_neighbours(const Context& context, std::int64_t n, unsigned at_once = 8) {
  return grid_over(context, ceil_div(n, kNeighbours), at_once);
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

// A row that a warp goes over several times. With kHeld it lies on packs, is read once and stays in
// registers. All of its loads are then in flight together. Without kHeld each pass reads the row.
template <class T, int kHeld, bool kAligned = (kHeld > 0)>
class WarpRow {
 public:
  using C = Compute<T>;
  WarpRow() = default;  // zeros
  __device__ WarpRow(const T* row, int width) : row_(computed_once<kAligned>(row)), width_(width) {
    if constexpr (kHeld > 0)
      for_lane_columns<kHeld>(width, [&](int k, int c) { held_[k] = load_aligned(row_ + c); });
  }
  // Writes the row first: made(k, c), as of for_lane_columns.
  template <class Made>
  __device__ WarpRow(T* to, int width, const Made& made) : row_(to), width_(width) {
    T* const row = computed_once<kAligned>(to);
    for_lane_columns<kHeld>(width, [&](int k, int c) {
      const Packed<T> packed = pack<T>(made(k, c));
      if constexpr (kHeld > 0) held_[k] = packed;
      store_packed<kAligned>(row, c, width, packed);
    });
    __syncwarp();  // all of it is seen by all lanes
  }
  // As of for_lane_columns; zeros beyond the width.
  __device__ Neighbours<C> at(int k, int c) const {
    if constexpr (kHeld > 0) return unpack(held_[k]);
    return row_ ? load_neighbours<kAligned>(row_, c, width_) : Neighbours<C>{};
  }
  // Before another pass, which then needs no registers but those that hold the row.
  __device__ void unpack_again() {
    if constexpr (kHeld > 0)
      for (Packed<T>& packed : held_)
        for (std::uint32_t& word : packed.word) forget(word);
  }
  // Column 0, in all lanes.
  __device__ C first() const {
    if constexpr (kHeld > 0) return __shfl_sync(kAllLanes, static_cast<C>(held_[0].get(0)), 0);
    return row_[0];
  }

 private:
  const T* row_ = nullptr;
  int width_ = 0;
  Packed<T> held_[kHeld > 0 ? kHeld : 1] = {};
};

// The sum of the squares of what a lane writes of a row.
template <class C>
class LaneSquares {
 public:
  template <bool kAligned>
  __device__ void add(const Neighbours<C>& of, int c, int width) {
    for (int i = 0; i < kNeighbours; ++i)
      if (kAligned || c + i < width) sum_ += of.value[i] * of.value[i];
  }
  // Where f32 does not hold it, it is made again, of what now lies in the row.
  template <class T>
  __device__ double total(const T* row, int width) const {
    if (holds_squares(sum_)) return sum_;
    double sum = 0;
    for_lane_columns<0>(width, [&](int, int c) {
      for (const C value : load_neighbours(row, c, width).value) sum += squared(value);
    });
    return sum;
  }

 private:
  C sum_ = 0;
};

// Whether rows of `width`, `stride` apart, lie on packs and are as wide as several.
inline bool lie_on_packs(const void* rows, std::int64_t width, std::int64_t stride) {
  return width % kNeighbours == 0 && stride % kNeighbours == 0 &&
         reinterpret_cast<std::uintptr_t>(rows) % alignof(Packed<float>) == 0;
}

// Whether the rows of all these tensors that are given lie so, and are no wider than `most`. Rows
// of f64 are not asked: they are there to be compared with.
template <class T>
bool are_aligned(std::initializer_list<const Tensor*> tensors, std::int64_t most = INT_MAX) {
  return !std::is_same_v<T, double> && std::ranges::all_of(tensors, [&](const Tensor* rows) {
    return !*rows ||
           (rows->width() <= most && lie_on_packs(rows->data, rows->width(), rows->width()));
  });
}
// f(constant bool) of it.
template <class T, class F>
void with_aligned(std::initializer_list<const Tensor*> tensors, const F& f) {
  if constexpr (!std::is_same_v<T, double>)
    if (are_aligned<T>(tensors)) return f(std::true_type{});
  f(std::false_type{});
}
// f(constant kHeld, constant kWidth): rows that are held lie so. kWidth is that of the rows, or 0.
template <class T, class F>
void with_held(std::int64_t width, std::initializer_list<const Tensor*> tensors, const F& f) {
  constexpr int kLane = kWarp * kNeighbours, kMostHeld = 8;
  if constexpr (!std::is_same_v<T, double>)
    if (are_aligned<T>(tensors, kMostHeld * kLane)) {
      if (width == 6 * kLane) return f(Constant<6>{}, Constant<6 * kLane>{});
      if (width == 8 * kLane) return f(Constant<8>{}, Constant<8 * kLane>{});
      return f(Constant<kMostHeld>{}, Constant<0>{});
    }
  f(Constant<0>{}, Constant<0>{});
}

// A row is counted in int, up to the last step beyond it.
inline int width_of(const Tensor& rows) {
  VCAS_CHECK(rows.width() <= INT_MAX - kThreads * kNeighbours, "rows of " + rows.shape.text());
  return static_cast<int>(rows.width());
}

}  // namespace vcas::VCAS_DEVICE
