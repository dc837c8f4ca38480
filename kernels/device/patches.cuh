// Convolutions by copies: patches are laid out in scratch, piece by piece, and multiplied there.
#pragma once

#include "kernels/device/gathered_wgmma.cuh"
#include "kernels/device/product.cuh"

namespace vcas::VCAS_DEVICE {

// The summands of a weight gradient from `first` on: row(k) is the patch of each.
struct PatchRows {
  const std::int32_t* kept;   // k -> compact row, null: itself
  const std::int32_t* row;    // compact row -> patch, null: itself
  const std::int32_t* count;  // [1]: summands from there on are not set; null: all are
  std::int64_t first;

  __device__ std::int64_t patch_of(std::int64_t k) const {
    return count && first + k >= *count ? -1 : at(row, at(kept, first + k));
  }
};

// y[k] = the patch of row k, zeros for one that is not set and beyond the patch's values. A warp a
// row.
template <class T>
__global__ void copy_patches_kernel(T* y, const T* x, Patches patches, PatchRows rows,
                                    std::int32_t channels, std::int64_t count, std::int32_t width) {
  const std::int64_t k = row_of_warp();
  if (k >= count) return;
  const std::int64_t patch = rows.patch_of(k);
  const ImagePlace place(max(patch, std::int64_t{0}),
                         static_cast<std::int32_t>(patches.out_height()),
                         static_cast<std::int32_t>(patches.out_width()));
  const std::int32_t top = place.y * patches.stride - patches.padding;
  const std::int32_t left = place.x * patches.stride - patches.padding;
  const T* const item = x + place.item * patches.in_rows() * channels;
  const std::int32_t values = patch < 0 ? 0 : static_cast<std::int32_t>(patches.taps()) * channels;
  for (std::int32_t c = lane_of_thread(); c < width; c += kWarp) {
    const std::int32_t tap = c / channels, ky = tap / patches.kernel;
    const std::int32_t line = top + ky, column = left + tap - ky * patches.kernel;
    const bool inside =
        c < values && line >= 0 && line < patches.height && column >= 0 && column < patches.width;
    const std::int64_t pixel = std::int64_t{line} * patches.width + column;
    y[k * width + c] = inside ? item[pixel * channels + c - tap * channels] : T(0);
  }
}

// dx[pixel, c] = (or +=) the sum over the patches that hold the pixel, by ascending taps. One
// thread an entry. `dpatches` and dx begin at the same item.
template <class T>
__global__ void add_patches_kernel(T* dx, const Compute<T>* dpatches, Patches patches,
                                   std::int64_t channels, bool accumulate, std::int64_t n) {
  const std::int64_t pixels = patches.in_rows(), taps = patches.taps();
  for_each_element(n, [&](std::int64_t i) {
    const std::int64_t p = i / channels, c = i % channels;
    Compute<T> sum = accumulate ? Compute<T>(dx[i]) : Compute<T>(0);
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      const std::int64_t place =
          patches.row_with(p % pixels, tap / patches.kernel, tap % patches.kernel);
      if (place >= 0)
        sum += dpatches[((p / pixels * patches.out_rows() + place) * taps + tap) * channels + c];
    }
    dx[i] = static_cast<T>(sum);
  });
}

template <class T>
void copy_patches(Context& context, T* y, const Tensor& x, const Patches& patches,
                  const PatchRows& rows, std::int64_t count) {
  launch(context, grid_of_rows(count), copy_patches_kernel<T>, y, x.ptr<T>(), patches, rows,
         static_cast<std::int32_t>(x.width()), count,
         static_cast<std::int32_t>(Patches::padded(patches.taps() * x.width(), sizeof(T))));
}

// out[n] = row n of x, and zeros up to the width of out. One thread an entry.
template <class T>
__global__ void pad_rows_kernel(T* out, const T* x, std::int64_t width, std::int64_t values,
                                std::int64_t n) {
  for_each_element(n, [&](std::int64_t i) {
    out[i] = i % width < values ? x[i / width * values + i % width] : T(0);
  });
}

template <class T>
void forward_patches(Context& context, const LinearForward& args) {
  const std::int64_t values = args.weight.width(), d = args.y.width(), rows = args.y.rows();
  const std::int64_t width = Patches::padded(values, sizeof(T));
  const std::int64_t most = Patches::rows_at_once(width);
  T* space = scratch<T>(context, (std::min(most, rows) + d) * width);
  T* weight = space + std::min(most, rows) * width;
  launch(context, grid_over(context, d * width), pad_rows_kernel<T>, weight, args.weight.ptr<T>(),
         width, values, d * width);
  for (std::int64_t first = 0; first < rows; first += most) {
    const std::int64_t count = std::min(most, rows - first);
    copy_patches<T>(context, space, args.x, args.patches, {nullptr, nullptr, nullptr, first},
                    count);
    dense_product<T, T>(context, count, d, width, {space, width}, {weight, width, true},
                        args.y.ptr<T>() + first * d, false, args.bias.ptr<T>());
  }
}

template <class T>
void backward_patches(Context& context, const LinearBackwardInput& args) {
  using C = Compute<T>;
  const Patches& patches = args.patches;
  const std::int64_t values = args.weight.width(), d = args.dy.width();
  const std::int64_t items = args.dy.rows() / patches.out_rows();
  const std::int64_t most = patches.items_at_once(values);
  C* space = scratch<C>(context, std::min(most, items) * patches.out_rows() * values);
  const std::int64_t channels = args.dx.width();
  for (std::int64_t first = 0; first < items; first += most) {
    const std::int64_t count = std::min(most, items - first);
    dense_product<T, C>(context, count * patches.out_rows(), values, d,
                        {args.dy.ptr<T>() + first * patches.out_rows() * d, d},
                        {args.weight.ptr<T>(), values}, space, false);
    const std::int64_t n = count * patches.in_rows() * channels;
    launch(context, grid_over(context, n), add_patches_kernel<T>,
           args.dx.ptr<T>() + first * patches.in_rows() * channels, space, patches, channels,
           args.accumulate, n);
  }
}

template <class T>
void weight_gradient_of_patches(Context& context, const LinearBackwardWeight& args) {
  using C = Compute<T>;
  const auto* kept = args.kept.ptr<std::int32_t>();
  const auto* row = args.row.ptr<std::int32_t>();
  const auto* count = args.count.ptr<std::int32_t>();
  const C* scale = args.scale.ptr<C>();
  const T* dy = args.dy.ptr<T>();
  C* dweight = args.dweight.ptr<C>();
  const std::int64_t values = args.dweight.width(), d = args.dy.width();
  const std::int64_t rows = args.depth();
  const std::int64_t width = Patches::padded(values, sizeof(T));
  const std::int64_t most = Patches::rows_at_once(width);
  T* space = scratch<T>(context, std::min(most, rows) * width);
  for (std::int64_t first = 0; first == 0 || first < rows; first += most) {
    const std::int64_t depth = std::min(most, rows - first);
    const bool accumulate = args.accumulate || first > 0;
    copy_patches<T>(context, space, args.x_full, args.patches, {kept, row, count, first}, depth);
    if (!kept) {
      dense_product<T, C>(context, d, values, depth, {dy + first * d, d, true}, {space, width},
                          dweight, accumulate);
      continue;
    }
    Several<GatheredProduct<T>> product;
    product.add({dweight,
                 {dy, d, kept + first, nullptr, d},
                 {space, width, nullptr, nullptr, values},
                 scale ? scale + first : nullptr,
                 depth,
                 count,
                 accumulate,
                 has_few_chunks(args.dy),
                 first});
    gathered_products(context, product);
  }
}

}  // namespace vcas::VCAS_DEVICE
