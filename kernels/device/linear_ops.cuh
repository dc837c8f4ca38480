// Linear layers: dense products, products over gathered rows, and sums of columns.
#pragma once

#include "kernels/device/column_sum.cuh"
#include "kernels/device/copied_product.cuh"
#include "kernels/device/gathered_products.cuh"
#include "kernels/device/patch_wgmma.cuh"
#include "kernels/device/patches.cuh"
#include "kernels/device/product.cuh"

namespace vcas::VCAS_DEVICE {

// sum[c] = (or, with `accumulate`, +=) the sum of column c of x over the rows.
template <class T>
struct ColumnSums {
  Compute<T>* sum;   // [width]
  Compute<T>* part;  // [slices, width]
  const T* x;
  std::int64_t rows;
  int width;
  std::int64_t slices;
  bool accumulate;
};

// Blocks (128 columns, slice, one of the group), with 8 lanes of rows. The last slice of some
// columns to end adds up the parts. With kAligned rows lie on packs. Threads have 48 registers
// then: left to itself nvcc takes 40, and waits for rows that it could read together.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kColumnThreads* kRowLanes, kAligned ? 5 : 4)
    column_sum_kernel(const __grid_constant__ Several<ColumnSums<T>> group, unsigned* count) {
  const ColumnSums<T>& of = group.each[blockIdx.z];
  if (blockIdx.y >= of.slices || static_cast<int>(blockIdx.x) * kColumnTile >= of.width) return;
  const int c = column_of_thread();
  const auto own = sum_of_slice<kAligned>(of.x, of.rows, of.width, c, blockIdx.y, of.slices);
  sum_over_slices<kAligned>(of.sum, of.part, count + blockIdx.z * gridDim.x + blockIdx.x, own, c,
                            of.width, of.slices, of.accumulate);
}

// ---- host ----

void compute(Context& context, const LinearForward& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    if (reads_pixels(args.patches, args.x, args.y)) return direct_forward<T>(context, args);
    if (args.patches) return forward_patches<T>(context, args);
    const std::int64_t c = args.x.width(), d = args.y.width();
    dense_product<T, T>(context, args.y.rows(), d, c, {args.x.ptr<T>(), c},
                        {args.weight.ptr<T>(), c, true}, args.y.ptr<T>(), false,
                        args.bias.ptr<T>());
  });
}

void compute(Context& context, const LinearBackwardInput& args) {
  with_type(args.dx.dtype, [&](auto type) {
    using T = decltype(type);
    if (reads_pixels(args.patches, args.dx, args.dy)) return direct_backward<T>(context, args);
    if (args.patches) return backward_patches<T>(context, args);
    const std::int64_t c = args.dx.width(), d = args.dy.width();
    dense_product<T, T>(context, args.dx.rows(), c, d, {args.dy.ptr<T>(), d},
                        {args.weight.ptr<T>(), c}, args.dx.ptr<T>(), args.accumulate);
  });
}

void compute(Context& context, const Group<LinearBackwardWeight>& group) {
  with_type(group[0].dy.dtype, [&](auto type) {
    using T = decltype(type);
    Several<GatheredProduct<T>> gathered;
    for (const LinearBackwardWeight& args : group) {
      const std::int64_t d = args.dweight.shape[0], c = args.dweight.shape[1];
      const bool direct = reads_pixels(args.patches, args.x_full, args.dy);
      if (args.patches && !direct) {
        weight_gradient_of_patches<T>(context, args);
        continue;
      }
      auto* dweight = args.dweight.ptr<Compute<T>>();
      const auto* row = args.row.ptr<std::int32_t>();
      const auto* kept = args.kept.ptr<std::int32_t>();
      const T* dy = args.dy.ptr<T>();
      const T* x = args.x_full.ptr<T>();
      if (!row && !kept && !direct) {
        dense_product<T, Compute<T>>(context, d, c, args.dy.rows(), {dy, d, true}, {x, c}, dweight,
                                     args.accumulate);
        continue;
      }
      const GatheredProduct<T> product = {
          .c = dweight,
          .a = {dy, d, kept, nullptr, d},
          .b = {x, args.x_full.width(), kept, row, c, PatchSizes(args.patches)},
          .scale = args.scale.ptr<Compute<T>>(),
          .depth = args.depth(),
          .count = args.count.ptr<std::int32_t>(),
          .accumulate = args.accumulate,
          .few_chunks = has_few_chunks(args.dy) && has_few_chunks(args.x_full),
          .pieces = args.pieces_of_sum()};
      if (args.copies_rows())
        copied_product(context, product, args.rows_copied_at_once());
      else
        gathered.add(product);
    }
    if (gathered.size > 0) gathered_products(context, gathered);
  });
}

void compute(Context& context, const Group<ColumnSum>& group) {
  with_type(group[0].x.dtype, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    constexpr std::int64_t kRowsPerSlice = 16 * kRowLanes, kMostSlices = 64;
    const auto slices_of = [&](const ColumnSum& args) {
      return std::clamp<std::int64_t>(ceil_div(args.x.rows(), kRowsPerSlice), 1, kMostSlices);
    };
    std::int64_t elements = 0, slices = 0;
    int width = 0;
    bool aligned = true;
    for (const ColumnSum& args : group) {
      elements += slices_of(args) * args.x.width();
      slices = std::max(slices, slices_of(args));
      width = std::max(width, width_of(args.x));
      aligned = aligned && are_aligned<T>({&args.x, &args.sum});
    }
    C* part = scratch<C>(context, elements);
    Several<ColumnSums<T>> sums;
    for (const ColumnSum& args : group) {
      sums.add({args.sum.ptr<C>(), part, args.x.ptr<T>(), args.x.rows(), width_of(args.x),
                slices_of(args), args.accumulate});
      part += slices_of(args) * args.x.width();
    }
    const std::int64_t tiles = ceil_div(width, kColumnTile);
    launch(context, {extent(tiles, slices, sums.size), extent(kColumnThreads, kRowLanes)},
           aligned ? column_sum_kernel<T, true> : column_sum_kernel<T, false>, sums,
           context.counts(static_cast<std::size_t>(tiles * sums.size)));
  });
}

}  // namespace vcas::VCAS_DEVICE
