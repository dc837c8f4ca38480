// Sketches of the items' weight gradients, and their inner products.
#pragma once

#include "kernels/device/reduce.cuh"
#include "kernels/ops/patches.h"

namespace vcas::VCAS_DEVICE {

// Entry (r, b): the sum over columns b, b + buckets, ... of sign times the entry of row(r), or of
// that patch.
template <class T, bool kPatches = false>
struct Buckets {
  const T* data;
  std::int64_t width;
  const std::int32_t* row;  // null: itself
  const Compute<T>* sign;
  std::int64_t buckets;
  Patches patches = {};

  __device__ Compute<T> at_bucket(std::int64_t r, std::int64_t b) const {
    if constexpr (kPatches) return of_patch(at(row, r), b);
    const T* from = data + at(row, r) * width;
    Compute<T> sum = 0;
    for (std::int64_t c = b; c < width; c += buckets) sum += sign[c] * Compute<T>(from[c]);
    return sum;
  }

 private:
  __device__ Compute<T> of_patch(std::int64_t patch, std::int64_t b) const {
    Compute<T> sum = 0;
    for (std::int64_t c = b; c < patches.taps() * width; c += buckets) {
      const std::int64_t tap = c / width;
      const std::int64_t pixel = patches.pixel(patch, tap / patches.kernel, tap % patches.kernel);
      if (pixel >= 0) sum += sign[c] * Compute<T>(data[pixel * width + c % width]);
    }
    return sum;
  }
};

// A block owns kSketchSide x kSketchSide entries of the sketch of item blockIdx.x.
// It goes over the item's rows, or a stretch of a draw, kSketchDepth at a time.
// A thread adds up one bucket of each factor, and owns kSketchPerThread entries.
constexpr int kSketchSide = 32, kSketchDepth = kThreads / kSketchSide;
constexpr int kSketchPerThread = kSketchSide * kSketchSide / kThreads;

template <class T, bool kPatches>
__global__ void __launch_bounds__(kThreads)
    item_sketch_kernel(Compute<T>* sketch, Buckets<T> out, Buckets<T, kPatches> in,
                       const std::int64_t* offsets, const std::int32_t* kept,
                       const Compute<T>* scale, const std::int32_t* count, std::int64_t drawn,
                       std::int64_t stretch) {
  struct Shared {
    Compute<T> out[kSketchDepth][kSketchSide], in[kSketchDepth][kSketchSide];
  };
  VCAS_SHARED(Shared, shared);
  const std::int64_t across = (in.buckets + kSketchSide - 1) / kSketchSide;
  const std::int64_t first_a = blockIdx.y / across * kSketchSide;
  const std::int64_t first_b = blockIdx.y % across * kSketchSide;
  const int own = static_cast<int>(threadIdx.x) % kSketchSide;
  const int own_row = static_cast<int>(threadIdx.x) / kSketchSide;
  std::int64_t first = blockIdx.x * stretch;
  std::int64_t end = min(first + stretch, count ? *count : drawn);
  if (offsets) first = offsets[blockIdx.x], end = offsets[blockIdx.x + 1];
  Compute<T> sum[kSketchPerThread] = {};
  for (; first < end; first += kSketchDepth) {
    const std::int64_t r = first + own_row;
    const bool inside = r < end;
    const std::int64_t source = inside ? at(kept, r) : 0;
    shared.out[own_row][own] =
        inside && first_a + own < out.buckets ? out.at_bucket(source, first_a + own) : 0;
    if (inside && scale) shared.out[own_row][own] *= scale[r];
    shared.in[own_row][own] =
        inside && first_b + own < in.buckets ? in.at_bucket(source, first_b + own) : 0;
    __syncthreads();
    for (int k = 0; k < kSketchDepth; ++k)
      for (int i = 0; i < kSketchPerThread; ++i)
        sum[i] += shared.out[k][own_row + i * kSketchDepth] * shared.in[k][own];
    __syncthreads();
  }
  Compute<T>* item = sketch + blockIdx.x * out.buckets * in.buckets;
  for (int i = 0; i < kSketchPerThread; ++i) {
    const std::int64_t a = first_a + own_row + i * kSketchDepth, b = first_b + own;
    if (a < out.buckets && b < in.buckets) item[a * in.buckets + b] = sum[i];
  }
}

// A block of one warp multiplies rows blockIdx.x and blockIdx.y.
template <class S>
__global__ void gram_kernel(S* gram, const S* x, std::int64_t width) {
  const std::int64_t i = blockIdx.x, j = blockIdx.y;
  if (j > i) return;
  S own = 0;
  for (std::int64_t e = lane_of_thread(); e < width; e += kWarp)
    own += x[i * width + e] * x[j * width + e];
  const S sum = warp_sum(own);
  if (lane_of_thread() == 0) gram[i * gridDim.x + j] = gram[j * gridDim.x + i] = sum;
}

template <class T, bool kPatches>
void item_sketch(Context& context, const ItemSketch& args) {
  using C = Compute<T>;
  const std::int64_t a = args.out_buckets, b = args.in_buckets();
  launch(context,
         {extent(args.sketch.rows(), ceil_div(a, kSketchSide) * ceil_div(b, kSketchSide)),
          extent(kThreads)},
         item_sketch_kernel<T, kPatches>, args.sketch.ptr<C>(),
         Buckets<T>{args.dy.ptr<T>(), args.dy.width(), nullptr, args.out_sign.ptr<C>(), a},
         Buckets<T, kPatches>{args.x_full.ptr<T>(), args.x_full.width(),
                              args.row.ptr<std::int32_t>(), args.in_sign.ptr<C>(), b, args.patches},
         args.offsets.ptr<std::int64_t>(), args.kept.ptr<std::int32_t>(), args.scale.ptr<C>(),
         args.count.ptr<std::int32_t>(), args.rows_summed(), args.kept ? args.stretch() : 0);
}

void compute(Context& context, const ItemSketch& args) {
  with_type(args.dy.dtype, [&](auto type) {
    using T = decltype(type);
    args.patches ? item_sketch<T, true>(context, args) : item_sketch<T, false>(context, args);
  });
}

void compute(Context& context, const Gram& args) {
  with_statistics_type(args.x.dtype, [&](auto type) {
    using S = decltype(type);
    const std::int64_t n = args.x.rows();
    launch(context, {extent(n, n), extent(kWarp)}, gram_kernel<S>, args.gram.ptr<S>(),
           args.x.ptr<S>(), args.x.width());
  });
}

}  // namespace vcas::VCAS_DEVICE
