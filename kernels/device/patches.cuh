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

// y[k] = the patch of row k, zeros for one that is not set. One thread an entry.
template <class T>
__global__ void copy_patches_kernel(T* y, const T* x, Patches patches, PatchRows rows,
                                    std::int64_t channels, std::int64_t n) {
  const std::int64_t values = patches.taps() * channels;
  for_each_element(n, [&](std::int64_t i) {
    const std::int64_t patch = rows.patch_of(i / values), column = i % values;
    const std::int64_t tap = column / channels;
    const std::int64_t pixel =
        patch < 0 ? -1 : patches.pixel(patch, tap / patches.kernel, tap % patches.kernel);
    y[i] = pixel < 0 ? T(0) : x[pixel * channels + column % channels];
  });
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
  const std::int64_t n = count * patches.taps() * x.width();
  launch(context, grid_over(context, n), copy_patches_kernel<T>, y, x.ptr<T>(), patches, rows,
         x.width(), n);
}

template <class T>
void forward_patches(Context& context, const LinearForward& args) {
  const std::int64_t values = args.weight.width(), d = args.y.width(), rows = args.y.rows();
  const std::int64_t most = Patches::rows_at_once(values);
  T* space = scratch<T>(context, std::min(most, rows) * values);
  for (std::int64_t first = 0; first < rows; first += most) {
    const std::int64_t count = std::min(most, rows - first);
    copy_patches<T>(context, space, args.x, args.patches, {nullptr, nullptr, nullptr, first},
                    count);
    dense_product<T, T>(context, count, d, values, {space, values},
                        {args.weight.ptr<T>(), values, true}, args.y.ptr<T>() + first * d, false,
                        args.bias.ptr<T>());
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
  const std::int64_t rows = kept ? args.kept.elements() : args.dy.rows();
  const std::int64_t most = Patches::rows_at_once(values);
  T* space = scratch<T>(context, std::min(most, rows) * values);
  for (std::int64_t first = 0; first == 0 || first < rows; first += most) {
    const std::int64_t depth = std::min(most, rows - first);
    const bool accumulate = args.accumulate || first > 0;
    copy_patches<T>(context, space, args.x_full, args.patches, {kept, row, count, first}, depth);
    if (!kept) {
      dense_product<T, C>(context, d, values, depth, {dy + first * d, d, true}, {space, values},
                          dweight, accumulate);
      continue;
    }
    Several<GatheredProduct<T>> product;
    product.add({dweight,
                 {dy, d, kept + first, nullptr, d},
                 {space, values, nullptr, nullptr, values},
                 scale ? scale + first : nullptr,
                 depth,
                 count,
                 accumulate,
                 first});
    gathered_products(context, product);
  }
}

}  // namespace vcas::VCAS_DEVICE
