// Max pooling of images.
#pragma once

#include "kernels/ops/op.h"
#include "kernels/ops/patches.h"

namespace vcas {

// y[r, c] = the largest x[pixel, c] of the pixels of patch r, the first of equal ones. NaN counts
// as largest. Pixels outside do not count; each patch has a pixel inside.
struct MaxPoolForward {
  static constexpr const char* kName = "max_pool_forward";
  static constexpr Family kFamily = Family::kRest;
  Tensor y;    // T [R, C]
  Tensor tap;  // i32 [R, C]: ky * kernel + kx of that pixel
  Tensor x;    // T [pixels, C]
  Patches patches;
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.out("tap", tap), v.in("x", x);
  }

  void check() const {
    const std::int64_t pixels = y.rows() / patches.out_rows() * patches.in_rows();
    check_hold(kName, y.elements(), {{"tap", tap}});
    check_hold(kName, pixels * y.width(), {{"x", x}});
  }
  Work work() const { return {}; }
  Rounding rounding(std::string_view, const auto&) const { return {}; }
  static MaxPoolForward sample(auto& s) {
    return {.y = s.empty({s.rows(), s.size.width}),
            .tap = s.empty({s.rows(), s.size.width}, DType::kI32),
            .x = s.random({s.rows(), s.size.width}),
            .patches = s.patches()};
  }
};

// dx[pixel, c] = the sum of dy[r, c] over the patches r whose tap is that pixel, in ascending order
// of taps.
struct MaxPoolBackward {
  static constexpr const char* kName = "max_pool_backward";
  static constexpr Family kFamily = Family::kRest;
  Tensor dx;        // T [pixels of the kept items, C]
  Tensor dy;        // T [K, C]
  Tensor tap_full;  // i32 [R, C]
  Tensor row;       // i32 [K], optional
  Patches patches;
  template <class V>
  void visit(V&& v) const {
    v.out("dx", dx), v.in("dy", dy), v.in("tap_full", tap_full), v.in("row", row);
  }

  void check() const {
    const std::int64_t rows = dx.rows() / patches.in_rows() * patches.out_rows();
    check_hold(kName, rows * dx.width(), {{"dy", dy}});
    check_hold(kName, rows, {{"row", row}});
  }
  Work work() const { return {.rows_read = rows_named(row)}; }
  Rounding rounding(std::string_view, const auto& values) const {
    return {patches.taps(), values.top(dy)};
  }
  static MaxPoolBackward sample(auto& s) {
    const MaxPoolForward forward = MaxPoolForward::sample(s);
    s.run(forward);
    return {.dx = s.empty({s.kept_rows(), s.size.width}),
            .dy = s.random({s.kept_rows(), s.size.width}),
            .tap_full = forward.tap,
            .row = s.row(),
            .patches = forward.patches};
  }
};

}  // namespace vcas

// clang-format off
#define VCAS_MAX_POOL_OPS(X) \
  X(MaxPoolForward) X(MaxPoolBackward)
// clang-format on
