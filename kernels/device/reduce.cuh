// Sums, maxima and scans over a warp or a block, in a fixed order. Every thread of the warp or
// block takes part, in blocks of one dimension and whole warps.
#pragma once

#include "kernels/device/launch.cuh"
#include "kernels/device/math.cuh"

namespace vcas::VCAS_DEVICE {

struct Plus {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
// Not a NaN where one of the two is none.
struct Maximum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a < b || a != a ? b : a;
  }
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Two results of one reduction.
template <class A, class B>
struct Pair {
  A first;
  B second;
};
template <class First, class Second>
struct Each {
  template <class A, class B>
  __device__ Pair<A, B> operator()(const Pair<A, B>& a, const Pair<A, B>& b) const {
    return {First{}(a.first, b.first), Second{}(a.second, b.second)};
  }
};

template <class T>
__device__ T shuffle_xor(T value, int distance) {
  return __shfl_xor_sync(kAllLanes, value, distance);
}
template <class A, class B>
__device__ Pair<A, B> shuffle_xor(const Pair<A, B>& value, int distance) {
  return {shuffle_xor(value.first, distance), shuffle_xor(value.second, distance)};
}

template <class T>
struct OnePerWarp {
  T value[kWarp];
};

// The same result in every lane.
template <class T, class Op>
__device__ T warp_reduce(T value, const Op& op) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    value = op(value, shuffle_xor(value, distance));
  return value;
}
template <class T>
__device__ T warp_sum(T value) {
  return warp_reduce(value, Plus{});
}

// The same result in every thread.
template <class T, class Op>
__device__ T block_reduce(T value, T identity, const Op& op) {
  VCAS_SHARED(OnePerWarp<T>, shared);
  value = warp_reduce(value, op);
  __syncthreads();  // the last use of `shared` is over
  if (lane_of_thread() == 0) shared.value[warp_of_thread()] = value;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  return warp_reduce(lane_of_thread() < warps ? shared.value[lane_of_thread()] : identity, op);
}
template <class T>
__device__ T block_sum(T value) {
  return block_reduce(value, T(0), Plus{});
}

// Whether the calling block is the last of `blocks` to come here. It then sees what the others have
// written. For all threads of a block of one or two dimensions. `count`: of Context::counts.
__device__ inline bool ends_last(unsigned* count, unsigned blocks) {
  VCAS_SHARED(bool, is_last);
  __syncthreads();  // all that the block writes is written
  if (threadIdx.x == 0 && threadIdx.y == 0)
    is_last = count_in_order(count, blocks - 1) == blocks - 1;
  __syncthreads();
  return is_last;
}

// Squares of a norm are summed in double: those of f32 leave its range.
template <class C>
__device__ double squared(C x) {
  return static_cast<double>(x) * static_cast<double>(x);
}
// Whether a sum of squares is what its type holds of them.
template <class C>
__device__ bool holds_squares(C sum) {
  return sizeof(C) > sizeof(float) || (sum > C(1e-28) && sum < C(1e28));
}
// The sum of the squares of a few numbers, in f32 where it holds them.
template <class C, int kCount>
__device__ double sum_of_squares(const C (&x)[kCount]) {
  if constexpr (sizeof(C) == sizeof(float)) {
    C quick = 0;
    for (const C value : x) quick += value * value;
    if (holds_squares(quick)) return quick;
  }
  double sum = 0;
  for (const C value : x) sum += squared(value);
  return sum;
}
template <class C>
__device__ C norm_from_squares(double sum) {
  return static_cast<C>(square_root(sum));
}

template <class T>
struct Scan {
  T inclusive;  // op over the threads up to this one
  T exclusive;  // op over the threads before it
  T total;
};

// inclusive over the lanes
template <class T, class Op>
__device__ T warp_scan(T value, const Op& op) {
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const T before = __shfl_up_sync(kAllLanes, value, static_cast<unsigned>(distance));
    if (lane_of_thread() >= distance) value = op(before, value);
  }
  return value;
}

template <class T, class Op>
__device__ Scan<T> block_scan(T value, T identity, const Op& op) {
  VCAS_SHARED(OnePerWarp<T>, shared);
  const int lane = lane_of_thread(), warp = warp_of_thread();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const T own = warp_scan(value, op);
  __syncthreads();  // the last use of `shared` is over
  if (lane == kWarp - 1) shared.value[warp] = own;
  __syncthreads();
  const T sums = warp_scan(lane < warps ? shared.value[lane] : identity, op);
  const T of_warps_before = __shfl_sync(kAllLanes, sums, warp > 0 ? warp - 1 : 0);
  const T before = warp > 0 ? of_warps_before : identity;
  const T of_lanes_before = __shfl_up_sync(kAllLanes, own, 1);
  return {op(before, own), lane > 0 ? op(before, of_lanes_before) : before,
          __shfl_sync(kAllLanes, sums, warps - 1)};
}

// What a block or a warp does together: so code for few numbers meets at no barrier of a block.
struct BlockTeam {
  static constexpr int kAtOnce = 4;  // numbers of a thread: it may have many
  __device__ static int size() { return static_cast<int>(blockDim.x); }
  __device__ static int rank() { return static_cast<int>(threadIdx.x); }
  template <class T, class Op>
  __device__ static T reduce(const T& value, const T& identity, const Op& op) {
    return block_reduce(value, identity, op);
  }
  template <class T, class Op>
  __device__ static Scan<T> scan(T value, T identity, const Op& op) {
    return block_scan(value, identity, op);
  }
  __device__ static void meet() { __syncthreads(); }
};
struct WarpTeam {
  static constexpr int kAtOnce = 1;
  __device__ static int size() { return kWarp; }
  __device__ static int rank() { return lane_of_thread(); }
  template <class T, class Op>
  __device__ static T reduce(const T& value, const T&, const Op& op) {
    return warp_reduce(value, op);
  }
  template <class T, class Op>
  __device__ static Scan<T> scan(T value, T identity, const Op& op) {
    const T own = warp_scan(value, op), before = __shfl_up_sync(kAllLanes, own, 1);
    return {own, lane_of_thread() > 0 ? before : identity, __shfl_sync(kAllLanes, own, kWarp - 1)};
  }
  __device__ static void meet() { __syncwarp(); }
};

}  // namespace vcas::VCAS_DEVICE
