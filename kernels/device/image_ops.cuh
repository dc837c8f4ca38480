// Max pooling. One thread an entry of what is written.
#pragma once

#include "kernels/device/launch.cuh"
#include "kernels/ops/patches.h"

namespace vcas::VCAS_DEVICE {

template <class T>
__global__ void max_pool_forward_kernel(T* y, std::int32_t* tap, const T* x, Patches patches,
                                        std::int64_t width, std::int64_t n) {
  for_each_element(n, [&](std::int64_t i) {
    T largest{};
    std::int32_t found = -1;
    for (std::int32_t t = 0; t < static_cast<std::int32_t>(patches.taps()); ++t) {
      const std::int64_t pixel = patches.pixel(i / width, t / patches.kernel, t % patches.kernel);
      if (pixel < 0) continue;
      using C = Compute<T>;
      const T value = x[pixel * width + i % width];
      const C own = value, most = largest;
      if (found >= 0 && !(own > most) && !(own != own && most == most)) continue;
      largest = value;
      found = t;
    }
    y[i] = largest;
    tap[i] = found;
  });
}

template <class T>
__global__ void max_pool_backward_kernel(T* dx, const T* dy, const std::int32_t* tap_full,
                                         const std::int32_t* row, Patches patches,
                                         std::int64_t width, std::int64_t n) {
  const std::int64_t pixels = patches.in_rows();
  for_each_element(n, [&](std::int64_t i) {
    const std::int64_t p = i / width, c = i % width;
    Compute<T> sum = 0;
    for (std::int32_t t = 0; t < static_cast<std::int32_t>(patches.taps()); ++t) {
      const std::int64_t place =
          patches.row_with(p % pixels, t / patches.kernel, t % patches.kernel);
      if (place < 0) continue;
      const std::int64_t r = p / pixels * patches.out_rows() + place;
      if (tap_full[at(row, r) * width + c] == t) sum += dy[r * width + c];
    }
    dx[i] = static_cast<T>(sum);
  });
}

void compute(Context& context, const MaxPoolForward& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t n = args.y.elements();
    launch(context, grid_over(context, n), max_pool_forward_kernel<T>, args.y.ptr<T>(),
           args.tap.ptr<std::int32_t>(), args.x.ptr<T>(), args.patches, args.y.width(), n);
  });
}

void compute(Context& context, const MaxPoolBackward& args) {
  with_type(args.dx.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t n = args.dx.elements();
    launch(context, grid_over(context, n), max_pool_backward_kernel<T>, args.dx.ptr<T>(),
           args.dy.ptr<T>(), args.tap_full.ptr<std::int32_t>(), args.row.ptr<std::int32_t>(),
           args.patches, args.dx.width(), n);
  });
}

}  // namespace vcas::VCAS_DEVICE
