// Max pooling. Threads along a row of what is written, four neighbours each.
#pragma once

#include "kernels/device/places.cuh"
#include "kernels/device/write_row.cuh"

namespace vcas::VCAS_DEVICE {

template <class T, bool kAligned>
__global__ void max_pool_forward_kernel(T* y, std::int32_t* tap, const T* x, Patches patches,
                                        std::int64_t rows, int width) {
  const std::int64_t r = row_of_writer();
  if (r >= rows) return;
  const ImagePlace place(r, static_cast<std::int32_t>(patches.out_height()),
                         static_cast<std::int32_t>(patches.out_width()));
  const std::int32_t top = place.y * patches.stride - patches.padding;
  const std::int32_t left = place.x * patches.stride - patches.padding;
  const std::int64_t item = place.item * patches.in_rows();
  write_row<kAligned>(y, nullptr, r, width, [&](int c) {
    Neighbours<Compute<T>> largest{};
    Neighbours<std::int32_t> found{{-1, -1, -1, -1}};
    for (std::int32_t ky = max(0, -top); ky < min(patches.kernel, patches.height - top); ++ky)
      for (std::int32_t kx = max(0, -left); kx < min(patches.kernel, patches.width - left); ++kx) {
        const std::int64_t pixel = item + (top + ky) * patches.width + left + kx;
        const auto of = load_neighbours<kAligned>(x + pixel * width, c, width);
        for (int i = 0; i < kNeighbours; ++i) {
          const Compute<T> own = of.value[i], most = largest.value[i];
          if (found.value[i] >= 0 && !(own > most) && !(own != own && most == most)) continue;
          largest.value[i] = own;
          found.value[i] = ky * patches.kernel + kx;
        }
      }
    Packed<std::int32_t> taps{};
    for (int i = 0; i < kNeighbours; ++i) taps.put(i, found.value[i]);
    store_packed<kAligned>(tap + r * width, c, width, taps);
    return largest;
  });
}

template <class T, bool kAligned>
__global__ void max_pool_backward_kernel(T* dx, const T* dy, const std::int32_t* tap_full,
                                         const std::int32_t* row, Patches patches,
                                         std::int64_t rows, int width) {
  const std::int64_t pixel = row_of_writer();
  if (pixel >= rows) return;
  const ImagePlace place(pixel, patches.height, patches.width);
  const auto out_height = static_cast<std::int32_t>(patches.out_height());
  const auto out_width = static_cast<std::int32_t>(patches.out_width());
  write_row<kAligned>(dx, nullptr, pixel, width, [&](int c) {
    Neighbours<Compute<T>> sum{};
    for (std::int32_t ky = 0; ky < patches.kernel; ++ky) {
      const std::int32_t top = place.y + patches.padding - ky, line = top / patches.stride;
      if (top < 0 || line * patches.stride != top || line >= out_height) continue;
      for (std::int32_t kx = 0; kx < patches.kernel; ++kx) {
        const std::int32_t left = place.x + patches.padding - kx, column = left / patches.stride;
        if (left < 0 || column * patches.stride != left || column >= out_width) continue;
        const std::int64_t r = (std::int64_t{place.item} * out_height + line) * out_width + column;
        const auto taps = load_packed<kAligned>(tap_full + at(row, r) * width, c, width);
        const auto more = load_neighbours<kAligned>(dy + r * width, c, width);
        for (int i = 0; i < kNeighbours; ++i)
          if (taps.get(i) == ky * patches.kernel + kx) sum.value[i] += more.value[i];
      }
    }
    return sum;
  });
}

void compute(Context& context, const MaxPoolForward& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    with_aligned<T>({&args.y, &args.tap, &args.x}, [&](auto aligned) {
      launch(context, grid_of_writers(args.y), max_pool_forward_kernel<T, aligned>, args.y.ptr<T>(),
             args.tap.ptr<std::int32_t>(), args.x.ptr<T>(), args.patches, args.y.rows(),
             width_of(args.y));
    });
  });
}

void compute(Context& context, const MaxPoolBackward& args) {
  with_type(args.dx.dtype, [&](auto type) {
    using T = decltype(type);
    with_aligned<T>({&args.dx, &args.dy, &args.tap_full}, [&](auto aligned) {
      launch(context, grid_of_writers(args.dx), max_pool_backward_kernel<T, aligned>,
             args.dx.ptr<T>(), args.dy.ptr<T>(), args.tap_full.ptr<std::int32_t>(),
             args.row.ptr<std::int32_t>(), args.patches, args.dx.rows(), width_of(args.dx));
    });
  });
}

}  // namespace vcas::VCAS_DEVICE
