// Linear maps: products, bias gradients. With `patches` they are convolutions: rows of x and dx are
// pixels, rows of y and dy are places of the kernel. C is then kernel * kernel * channels.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/ops/op.h"
#include "kernels/ops/patches.h"

namespace vcas {

// Whether 32 bits can number the chunks of 16 bytes, as products on tensor cores do.
inline bool has_few_chunks(const Tensor& tensor) { return tensor.bytes() < std::size_t{1} << 35; }

// Whether a device reads these pixels where they lie, for a product with rows as wide as `other`.
inline bool reads_pixels(const Patches& patches, const Tensor& pixels, const Tensor& other) {
  const std::size_t value = dtype_bytes(pixels.dtype);
  return patches && has_few_chunks(pixels) && has_few_chunks(other) &&
         patches.direct(pixels.width() * value, other.width() * value);
}

// Throws unless `weight` [D, C] fits the rows of x, y and the patches.
inline void check_linear(const Tensor& y, const Tensor& x, const Tensor& weight,
                         const Patches& patches) {
  const bool rows_fit = patches ? y.rows() % patches.out_rows() == 0 &&
                                      y.rows() / patches.out_rows() * patches.in_rows() == x.rows()
                                : y.rows() == x.rows();
  VCAS_CHECK(rows_fit && weight.shape == (Shape{y.width(), patches.taps() * x.width()}),
             "shapes " + y.shape.text() + ", " + x.shape.text() + ", " + weight.shape.text());
}

// y = x W^T + b, or patches of x
struct LinearForward {
  static constexpr const char* kName = "linear_forward";
  static constexpr Family kFamily = Family::kProducts;
  Tensor y;          // T [R, D]
  Tensor x;          // T [R, C]; [pixels, channels] with patches
  Tensor weight;     // T [D, C]
  Tensor bias = {};  // T [D], optional
  Patches patches = {};
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.in("x", x), v.in("weight", weight), v.in("bias", bias);
  }

  void check() const {
    check_linear(y, x, weight, patches);
    VCAS_CHECK(!bias || bias.elements() == y.width(),
               "bias " + bias.shape.text() + " of rows " + y.shape.text());
  }
  Work work() const {
    const std::int64_t values = weight.width();
    const std::int64_t copied = Patches::padded(values, dtype_bytes(y.dtype));
    const bool direct = reads_pixels(patches, x, y), copies = patches && !direct;
    // A product of bf16 whose rows do not lie on 16 bytes begins with its bias.
    const bool lie_on_chunks = (copies || values % 8 == 0) && y.width() % 8 == 0;
    const int of_product = bias && y.dtype == DType::kBF16 && !direct && !lie_on_chunks ? 2 : 1;
    return {.flops = 2 * product(y.rows(), values, y.width()),
            .launches = copies
                            ? 1 + (1 + of_product) * pieces(y.rows(), Patches::rows_at_once(copied))
                            : of_product};
  }
  Rounding rounding(std::string_view, const auto& values) const {
    return {weight.width(), values.top(x) * values.top(weight) + values.top(bias)};
  }
  static LinearForward sample(auto& s) {
    if (s.size.convolution)
      return {.y = s.empty({s.rows(), s.size.width}),
              .x = s.random({s.rows(), s.size.width}),
              .weight = s.random({s.size.width, 9 * s.size.width}),
              .patches = s.patches()};
    return {.y = s.empty({s.rows(), s.size.hidden}),
            .x = s.random({s.rows(), s.size.width}),
            .weight = s.random({s.size.hidden, s.size.width}),
            .bias = s.random({s.size.hidden})};
  }
};

// dx = dy W, or dx += dy W. With patches a pixel gets the sum of its part of all that hold it.
struct LinearBackwardInput {
  static constexpr const char* kName = "linear_backward_input";
  static constexpr Family kFamily = Family::kProducts;
  Tensor dx;      // T [R, C]; [pixels, channels] with patches
  Tensor dy;      // T [R, D]
  Tensor weight;  // T [D, C]
  Patches patches = {};
  bool accumulate = false;
  template <class V>
  void visit(V&& v) const {
    v.out("dx", dx, accumulate), v.in("dy", dy), v.in("weight", weight);
  }

  void check() const { check_linear(dy, dx, weight, patches); }
  Work work() const {
    const std::int64_t values = weight.width();
    const std::int64_t items = patches ? dy.rows() / patches.out_rows() : 0;
    const bool copies = patches && !reads_pixels(patches, dx, dy);
    return {.flops = 2 * product(dy.rows(), values, dy.width()),
            .launches = copies    ? 2 * pieces(items, patches.items_at_once(values))
                        : patches ? 2
                                  : 1};
  }
  Rounding rounding(std::string_view, const auto& values) const {
    return {dy.width() * patches.taps(), values.top(dy) * values.top(weight) + values.top(dx)};
  }
  static LinearBackwardInput sample(auto& s) {
    if (s.size.convolution)
      return {.dx = s.empty({s.kept_rows(), s.size.width}),
              .dy = s.random({s.kept_rows(), s.size.width}),
              .weight = s.random({s.size.width, 9 * s.size.width}),
              .patches = s.patches()};
    return {.dx = s.empty({s.kept_rows(), s.size.width}),
            .dy = s.random({s.kept_rows(), s.size.hidden}),
            .weight = s.random({s.size.hidden, s.size.width})};
  }
};

// dW = sum over i < n of scale[i] * dy[kept[i]]^T x_full[row[kept[i]]].
// With patches row[kept[i]] is a patch of x_full.
// n is the length of kept. If a draw left its number on the device, n is count[0].
struct LinearBackwardWeight {
  static constexpr const char* kName = "linear_backward_weight";
  static constexpr Family kFamily = Family::kProducts;
  Tensor dweight;  // S [D, C]
  Tensor dy;       // T [K, D]
  Tensor x_full;   // T [R, C]; [pixels, channels] with patches
  Patches patches = {};
  Tensor row = {};          // i32 [K], optional
  Tensor kept = {};         // i32 [n], optional: all K rows
  Tensor scale = {};        // S [n], optional: all ones
  Tensor count = {};        // i32 [1], optional, only with kept
  double expected = 0;      // of count, where it is given: what the product costs
  bool accumulate = false;  // dW += instead of dW =
  // What copies_rows() says where rows are gathered; benchmarks and tests set it.
  std::optional<bool> copies = {};
  template <class V>
  void visit(V&& v) const {
    v.out("dweight", dweight, accumulate), v.in("dy", dy), v.in("x_full", x_full), v.in("row", row);
    v.in("kept", kept), v.in("scale", scale), v.in("count", count);
  }

  // The most rows that it can sum.
  std::int64_t depth() const { return kept ? kept.elements() : dy.rows(); }
  std::int64_t rows_summed() const { return count ? std::llround(expected) : depth(); }
  double flops() const { return 2 * product(rows_summed(), dweight.width(), dy.width()); }

  // Whether a device lays the rows side by side first, and multiplies these copies densely. That is
  // faster from so many FLOPs on (docs/kernels.md). Copies of rows that were not drawn are zeros.
  bool copies_rows() const {
    if (patches || (!row && !kept) || depth() == 0) return false;
    const double least = dy.dtype == DType::kBF16 ? 0x1p32 : 0x1p28;
    return copies.value_or(flops() >= least && 2 * rows_summed() >= depth());
  }
  // It copies so many at a time: as have 2^24 numbers.
  std::int64_t rows_copied_at_once() const {
    constexpr std::int64_t kNumbers = std::int64_t{16} << 20;
    return std::clamp<std::int64_t>(kNumbers / (dweight.width() + dy.width()), 1, depth());
  }

  // A device cuts its sum into so many pieces: more than one where rows are many and entries few.
  // The pieces are added up in order.
  std::int64_t pieces_of_sum() const {
    constexpr std::int64_t kTile = 64, kBlocks = 256, kRows = 1024;
    const std::int64_t tiles = pieces(dweight.shape[0], kTile) * pieces(dweight.shape[1], kTile);
    return std::max<std::int64_t>(std::min(kBlocks / tiles, depth() / kRows), 1);
  }
  void check() const {
    VCAS_CHECK(
        dy.width() == dweight.shape[0] && patches.taps() * x_full.width() == dweight.shape[1],
        "shapes " + dweight.shape.text() + ", " + dy.shape.text() + ", " + x_full.shape.text());
    VCAS_CHECK(!count || kept, "the count of a draw without the draw");
    check_hold(kName, depth(), {{"scale", scale}});
  }
  // Products over all rows, in order, are dense: a launch each. The others are one, and one that
  // adds up pieces. Rows and patches that are copied apart are so first, piece by piece.
  Work work() const {
    const bool direct = reads_pixels(patches, x_full, dy);
    const bool copies_patches = patches && !direct, dense = !row && !kept && !direct;
    const std::int64_t at_once =
        copies_patches
            ? Patches::rows_at_once(Patches::padded(dweight.width(), dtype_bytes(dy.dtype)))
        : copies_rows() ? rows_copied_at_once()
                        : 0;
    return {.flops = flops(),
            .rows_read = kept ? rows_summed() : rows_named(row),
            .launches = at_once > 0 ? 2 * pieces(depth(), at_once) : dense,
            .group_launches = at_once > 0 || dense  ? 0
                              : pieces_of_sum() > 1 ? 2
                                                    : 1};
  }
  Rounding rounding(std::string_view, const auto& values) const {
    const double largest = scale ? values.top(scale) : 1;
    return {dy.rows(), largest * values.top(dy) * values.top(x_full) + values.top(dweight)};
  }
  static LinearBackwardWeight sample(auto& s) {
    LinearBackwardWeight args{.dweight = s.wide({s.size.hidden, s.size.width}),
                              .dy = s.random({s.kept_rows(), s.size.hidden}),
                              .x_full = s.random({s.rows(), s.size.width}),
                              .row = s.row()};
    if (s.size.convolution) {
      args.patches = s.patches();
      args.dweight = s.wide({s.size.hidden, 9 * s.size.width});
    }
    if (!args.row) return args;
    args.kept = s.every_other_row();
    args.scale = s.positive(args.kept.elements());
    return args;
  }
};

// sum[c] = sum over r of x[r, c]: bias gradients.
struct ColumnSum {
  static constexpr const char* kName = "column_sum";
  static constexpr Family kFamily = Family::kRest;
  Tensor sum;               // S [C]
  Tensor x;                 // T [R, C]
  bool accumulate = false;  // sum += instead of sum =
  template <class V>
  void visit(V&& v) const {
    v.out("sum", sum, accumulate), v.in("x", x);
  }

  void check() const { check_hold(kName, x.width(), {{"sum", sum}}); }
  Work work() const { return {.launches = 0, .group_launches = 1}; }
  Rounding rounding(std::string_view, const auto& values) const {
    return {x.rows(), values.top(x) + values.top(sum)};
  }
  static ColumnSum sample(auto& s) {
    return {.sum = s.wide({s.size.hidden}), .x = s.random({s.kept_rows(), s.size.hidden})};
  }
};

}  // namespace vcas

// clang-format off
#define VCAS_LINEAR_OPS(X) \
  X(LinearForward) X(LinearBackwardInput) X(Group<LinearBackwardWeight>) X(Group<ColumnSum>)
// clang-format on
