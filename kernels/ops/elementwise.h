// Element by element: dropout, sums, copies.
#pragma once

#include "kernels/ops/op.h"

namespace vcas {

// y = x * mask / (1 - p), plus the residual if given. Backward is the same on dy with `row`.
// The mask of entry (r, c) is half a word of a Philox draw (kernels/dropout.h):
// the low half of word c % 4 where c % 256 < 128, else the high half.
// The draw has index 32 (row[r] * ceil(C / 256) + c / 256) + c % 128 / 4.
struct Dropout {
  static constexpr const char* kName = "dropout";
  static constexpr Family kFamily = Family::kRest;
  Tensor y;              // T [K, C]; may be the same memory as x
  Tensor y_norm = {};    // S [K], optional
  Tensor x;              // T [K, C]
  Tensor residual = {};  // T [K, C], optional
  Tensor row = {};       // i32 [K], optional
  double p = 0;
  RandomKey key;
  Tensor step;  // i64 [1], optional: in place of the key's
  template <class V>
  void visit(V&& v) const {
    v.out("y", y, x.data == y.data), v.out("y_norm", y_norm), v.in("residual", residual);
    v.in("row", row), v.in("step", step);
    if (x.data != y.data) v.in("x", x);
  }

  void check() const { check_equal(kName, y, x); }
  Work work() const { return {.rows_read = rows_named(row)}; }
  // Without a residual only norms are sums.
  Rounding rounding(std::string_view output, const auto& values) const {
    const double largest = residual ? values.top(x) / (1 - p) + values.top(residual) : 0;
    const Rounding of_y{1, largest};
    return output == "y_norm" ? of_norm(of_y, y.width()) : of_y;
  }
  static Dropout sample(auto& s) {
    return {.y = s.empty({s.kept_rows(), s.size.width}),
            .y_norm = s.wide({s.kept_rows()}),
            .x = s.random({s.kept_rows(), s.size.width}),
            .residual = s.random({s.kept_rows(), s.size.width}),
            .row = s.row(),
            .p = 0.1};
  }
};

// y = a + b
struct Add {
  static constexpr const char* kName = "add";
  static constexpr Family kFamily = Family::kRest;
  Tensor y;  // T, any shape; may be the same memory as a
  Tensor a;
  Tensor b;
  template <class V>
  void visit(V&& v) const {
    v.out("y", y, a.data == y.data), v.in("b", b);
    if (a.data != y.data) v.in("a", a);
  }

  void check() const {
    check_equal(kName, y, a);
    check_equal(kName, y, b);
  }
  Work work() const { return {}; }
  Rounding rounding(std::string_view, const auto&) const { return {}; }
  static Add sample(auto& s) {
    const Shape shape{s.rows(), s.size.width};
    return {.y = s.empty(shape), .a = s.random(shape), .b = s.random(shape)};
  }
};

struct Copy {
  static constexpr const char* kName = "copy";
  static constexpr Family kFamily = Family::kRest;
  Tensor y;  // any dtype and shape
  Tensor x;
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.in("x", x);
  }

  void check() const {
    VCAS_CHECK(y.bytes() == x.bytes(), "copy of " + x.shape.text() + " to " + y.shape.text());
  }
  Work work() const { return {}; }
  Rounding rounding(std::string_view, const auto&) const { return {}; }
  static Copy sample(auto& s) {
    const Shape shape{s.rows(), s.size.width};
    return {.y = s.empty(shape), .x = s.random(shape)};
  }
};

struct Fill {
  static constexpr const char* kName = "fill";
  static constexpr Family kFamily = Family::kRest;
  Tensor y;  // T or S
  double value = 0;
  Tensor from;  // i64 [1], optional: the first row that is filled
  template <class V>
  void visit(V&& v) const {
    v.out("y", y, static_cast<bool>(from)), v.in("from", from);
  }

  Work work() const { return {}; }
  Rounding rounding(std::string_view, const auto&) const { return {}; }
  static Fill sample(auto& s) { return {.y = s.empty({s.rows(), s.size.width}), .value = 0.5}; }
};

}  // namespace vcas

// clang-format off
#define VCAS_ELEMENTWISE_OPS(X) \
  X(Dropout) X(Add) X(Copy) X(Fill)
// clang-format on
