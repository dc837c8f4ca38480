// Count sketches of the items' weight gradients, and their inner products (docs/sampling.md).
//
// Row o of a weight gradient dW [D, C] goes with a sign into bucket o mod A, column c into bucket
// c mod B. With independent random signs, inner products of sketches are those of the gradients in
// the mean. With A = D and B = C they are equal.
#pragma once

#include "kernels/ops/op.h"
#include "kernels/ops/patches.h"

namespace vcas {

// sketch[n, a, b] = sum over the rows r of item n of out(r, a) in(r, b), where
// out(r, a) = sum over o = a, a + A, ... of out_sign[o] dy[r, o], and
// in(r, b) = sum over c = b, b + B, ... of in_sign[c] x_full[row[r], c].
// With patches x_full[row[r]] is a patch.
// With `kept` it is of a draw instead: the sum of scale[i] out(kept[i], a) in(kept[i], b), i < n.
// n is the length of kept. If a draw left its number on the device, n is count[0].
// sketch[0], sketch[1] ... are then of stretches of kept (stretch()), and add up to the draw's.
struct ItemSketch {
  static constexpr const char* kName = "item_sketch";
  static constexpr Family kFamily = Family::kSampling;
  Tensor sketch;                 // S [N, A * B]
  Tensor dy;                     // T [K, D]
  Tensor x_full;                 // T [R, C]; [pixels, channels] with patches
  Tensor row;                    // i32 [K], optional
  Tensor offsets;                // i64 [N + 1]: rows of the items in dy; only without kept
  Tensor out_sign;               // S [D]
  Tensor in_sign;                // S [C]
  std::int64_t out_buckets = 1;  // A
  Patches patches;
  Tensor kept = {};   // i32 [n], optional
  Tensor scale = {};  // S [n], only with kept
  Tensor count = {};  // i32 [1], optional, only with kept
  template <class V>
  void visit(V&& v) const {
    v.out("sketch", sketch), v.in("dy", dy), v.in("x_full", x_full), v.in("row", row);
    v.in("offsets", offsets), v.in("out_sign", out_sign), v.in("in_sign", in_sign);
    v.in("kept", kept), v.in("scale", scale), v.in("count", count);
  }

  std::int64_t rows_summed() const { return kept ? kept.elements() : dy.rows(); }  // at most
  std::int64_t stretch() const { return pieces(kept.elements(), sketch.rows()); }

  std::int64_t in_buckets() const { return sketch.width() / out_buckets; }  // B
  void check() const {
    VCAS_CHECK(sketch.width() == out_buckets * in_buckets() &&
                   in_sign.elements() == patches.taps() * x_full.width() &&
                   out_buckets <= dy.width() && in_buckets() <= in_sign.elements(),
               "a sketch of " + sketch.shape.text() + ", " + std::to_string(out_buckets) +
                   " buckets of " + std::to_string(dy.width()) + " outputs");
    VCAS_CHECK(kept ? !offsets && scale.elements() == kept.elements() : offsets && !scale && !count,
               "a sketch is of items by their offsets, or of a draw by its scale");
  }
  Work work() const {
    return {.flops = 2 * product(rows_summed(), out_buckets, in_buckets()),
            .rows_read = kept ? kept.elements() : rows_named(row)};
  }
  Rounding rounding(std::string_view, const auto& values) const {
    const std::int64_t deep = (dy.width() + out_buckets - 1) / out_buckets;
    const std::int64_t wide = (in_sign.elements() + in_buckets() - 1) / in_buckets();
    const double largest = scale ? values.top(scale) : 1;
    const std::int64_t longest = kept ? stretch() : values.longest_item(offsets);
    return {longest * deep * wide, largest * values.top(dy) * values.top(x_full)};
  }
  static ItemSketch sample(auto& s) {
    return {.sketch = s.wide({s.kept_items(), 32 * 16}),
            .dy = s.random({s.kept_rows(), s.size.hidden}),
            .x_full = s.random({s.rows(), s.size.width}),
            .row = s.row(),
            .offsets = s.offsets(s.kept_items()),
            .out_sign = s.wide_random({s.size.hidden}),
            .in_sign = s.wide_random({(s.size.convolution ? 9 : 1) * s.size.width}),
            .out_buckets = 32,
            .patches = s.size.convolution ? s.patches() : Patches{}};
  }
};

// gram[i, j] = sum over e of x[i, e] x[j, e]
struct Gram {
  static constexpr const char* kName = "gram";
  static constexpr Family kFamily = Family::kSampling;
  Tensor gram;  // S [N, N]
  Tensor x;     // S [N, E]
  template <class V>
  void visit(V&& v) const {
    v.out("gram", gram), v.in("x", x);
  }

  void check() const { check_hold(kName, x.rows() * x.rows(), {{"gram", gram}}); }
  Work work() const { return {.flops = product(x.rows(), x.rows() + 1, x.width())}; }
  Rounding rounding(std::string_view, const auto& values) const {
    return {x.width(), values.top(x) * values.top(x)};
  }
  static Gram sample(auto& s) {
    return {.gram = s.wide({s.kept_items(), s.kept_items()}),
            .x = s.wide_random({s.kept_items(), 32 * 16})};
  }
};

}  // namespace vcas

// clang-format off
#define VCAS_SKETCH_OPS(X) X(ItemSketch) X(Gram)
// clang-format on
