// Linear maps: products, bias gradients.
#pragma once

#include <cmath>

#include "kernels/ops/op.h"

namespace vcas {

// y = x W^T + b
struct LinearForward {
  static constexpr const char* kName = "linear_forward";
  static constexpr Family kFamily = Family::kProducts;
  Tensor y;       // T [R, D]
  Tensor x;       // T [R, C]
  Tensor weight;  // T [D, C]
  Tensor bias;    // T [D], optional
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.in("x", x), v.in("weight", weight), v.in("bias", bias);
  }

  Work work() const { return {.flops = 2 * product(y.rows(), x.width(), y.width())}; }
  Rounding rounding(std::string_view, const auto& values) const {
    return {x.width(), values.top(x) * values.top(weight) + values.top(bias)};
  }
  static LinearForward sample(auto& s) {
    return {.y = s.empty({s.rows(), s.size.hidden}),
            .x = s.random({s.rows(), s.size.width}),
            .weight = s.random({s.size.hidden, s.size.width}),
            .bias = s.random({s.size.hidden})};
  }
};

// dx = dy W, or dx += dy W
struct LinearBackwardInput {
  static constexpr const char* kName = "linear_backward_input";
  static constexpr Family kFamily = Family::kProducts;
  Tensor dx;      // T [R, C]
  Tensor dy;      // T [R, D]
  Tensor weight;  // T [D, C]
  bool accumulate = false;
  template <class V>
  void visit(V&& v) const {
    v.out("dx", dx, accumulate), v.in("dy", dy), v.in("weight", weight);
  }

  Work work() const { return {.flops = 2 * product(dy.rows(), dx.width(), dy.width())}; }
  Rounding rounding(std::string_view, const auto& values) const {
    return {dy.width(), values.top(dy) * values.top(weight) + values.top(dx)};
  }
  static LinearBackwardInput sample(auto& s) {
    return {.dx = s.empty({s.kept_rows(), s.size.width}),
            .dy = s.random({s.kept_rows(), s.size.hidden}),
            .weight = s.random({s.size.hidden, s.size.width})};
  }
};

// dW = sum over i < n of scale[i] * dy[kept[i]]^T x_full[row[kept[i]]].
// n is the length of kept. If an independent draw left its number on the device, n is count[0].
struct LinearBackwardWeight {
  static constexpr const char* kName = "linear_backward_weight";
  static constexpr Family kFamily = Family::kProducts;
  Tensor dweight;           // S [D, C]
  Tensor dy;                // T [K, D]
  Tensor x_full;            // T [R, C]
  Tensor row;               // i32 [K], optional
  Tensor kept;              // i32 [n], optional: all K rows
  Tensor scale;             // S [n], optional: all ones
  Tensor count;             // i32 [1], optional, only with kept
  double expected = 0;      // of count, where it is given: what the product costs
  bool accumulate = false;  // dW += instead of dW =
  template <class V>
  void visit(V&& v) const {
    v.out("dweight", dweight, accumulate), v.in("dy", dy), v.in("x_full", x_full), v.in("row", row);
    v.in("kept", kept), v.in("scale", scale), v.in("count", count);
  }

  std::int64_t rows_summed() const {
    if (count) return std::llround(expected);
    return kept ? kept.elements() : dy.rows();
  }

  // Products over all rows, in order, are dense: a launch each. The others are one.
  Work work() const {
    const bool dense = !row && !kept;
    return {.flops = 2 * product(rows_summed(), x_full.width(), dy.width()),
            .rows_read = kept ? rows_summed() : rows_named(row),
            .launches = dense,
            .group_launches = !dense};
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
    if (!args.row) return args;
    args.kept = s.every_other_row();
    args.scale = s.positive(args.kept.elements());
    return args;
  }
};

inline void check_count(const LinearBackwardWeight& args) {
  VCAS_CHECK(!args.count || args.kept, "the count of a draw without the draw");
}

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

  Work work() const {
    return {.launches = 0, .group_launches = 2};  // of parts of the rows, then of the parts
  }
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
