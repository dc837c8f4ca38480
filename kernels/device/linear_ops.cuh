// Linear layers: dense products, and products over gathered rows.
#pragma once

#include "kernels/device/gathered_products.cuh"
#include "kernels/device/patch_wgmma.cuh"
#include "kernels/device/patches.cuh"
#include "kernels/device/product.cuh"

namespace vcas::VCAS_DEVICE {

void compute(Context& context, const LinearForward& args) {
  check_linear(args.y, args.x, args.weight, args.patches);
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
  check_linear(args.dy, args.dx, args.weight, args.patches);
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
      VCAS_CHECK(args.dy.width() == d && args.patches.taps() * args.x_full.width() == c,
                 "shapes " + args.dweight.shape.text() + ", " + args.dy.shape.text() + ", " +
                     args.x_full.shape.text());
      check_count(args);
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
      if (!row && !kept && !direct)
        dense_product<T, Compute<T>>(context, d, c, args.dy.rows(), {dy, d, true}, {x, c}, dweight,
                                     args.accumulate);
      else
        gathered.add({.c = dweight,
                      .a = {dy, d, kept, nullptr, d},
                      .b = {x, args.x_full.width(), kept, row, c, PatchSizes(args.patches)},
                      .scale = args.scale.ptr<Compute<T>>(),
                      .depth = kept ? args.kept.elements() : args.dy.rows(),
                      .count = args.count.ptr<std::int32_t>(),
                      .accumulate = args.accumulate,
                      .pieces = args.pieces_of_sum()});
    }
    if (gathered.size > 0) gathered_products(context, gathered);
  });
}

}  // namespace vcas::VCAS_DEVICE
