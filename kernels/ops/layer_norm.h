// Layer norm.
#pragma once

#include "kernels/ops/elementwise.h"
#include "kernels/ops/op.h"

namespace vcas {

// How a layer norm draws what Dropout draws at the same address.
struct NormDropout {
  double p = 0;
  RandomKey key;
  Tensor step;  // i64 [1], optional: in place of the key's
};

// y = (x - mean) * rstd * gamma + beta, mean and rstd = 1 / sqrt(var + eps) of each row.
// With `branch` x is written first: the Dropout of the branch plus the residual.
struct LayerNormForward {
  static constexpr const char* kName = "layer_norm_forward";
  static constexpr Family kFamily = Family::kNorms;
  Tensor y;       // T [R, C]
  Tensor y_norm;  // S [R], optional
  Tensor center;  // S [R]: mean of the row less its first entry. Rounding of the mean itself
                  // would exceed the deviations of a row far from zero
  Tensor rstd;    // S [R]
  Tensor x;       // T [R, C]
  Tensor gamma;   // T [C]
  Tensor beta;    // T [C]
  double eps = 1e-5;
  Tensor branch;    // T [R, C], optional
  Tensor residual;  // T [R, C], given exactly when the branch is
  NormDropout dropout;
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.out("y_norm", y_norm), v.out("center", center), v.out("rstd", rstd);
    if (branch)
      v.out("x", x);
    else
      v.in("x", x);
    v.in("gamma", gamma), v.in("beta", beta), v.in("branch", branch), v.in("residual", residual);
    v.in("step", dropout.step);
  }

  Dropout sum() const {
    return {.y = x,
            .x = branch,
            .residual = residual,
            .p = dropout.p,
            .key = dropout.key,
            .step = dropout.step};
  }

  void check() const {
    check_hold(kName, y.elements(), {{"x", x}, {"branch", branch}, {"residual", residual}});
    check_hold(kName, y.rows(), {{"y_norm", y_norm}, {"center", center}, {"rstd", rstd}});
    check_hold(kName, y.width(), {{"gamma", gamma}, {"beta", beta}});
  }
  Work work() const { return {}; }
  // A deviation from the mean, in standard deviations, is only as good as x is.
  Rounding rounding(std::string_view output, const auto& values) const {
    if (output == "x") return sum().rounding("y", values);
    const double largest = values.top(x), inverse = values.top(rstd);
    if (output == "center") return {x.width(), largest};
    if (output == "rstd") return {x.width(), inverse * (1 + largest * inverse)};
    const Rounding of_y{x.width(), (1 + largest * inverse) * values.top(gamma) + values.top(beta)};
    return output == "y_norm" ? of_norm(of_y, y.width()) : of_y;
  }
  static LayerNormForward sample(auto& s) {
    return {.y = s.empty({s.rows(), s.size.width}),
            .y_norm = s.wide({s.rows()}),
            .center = s.wide({s.rows()}),
            .rstd = s.wide({s.rows()}),
            .x = s.random({s.rows(), s.size.width}),
            .gamma = s.random({s.size.width}),
            .beta = s.random({s.size.width}),
            .branch = s.random({s.rows(), s.size.width}),
            .residual = s.random({s.rows(), s.size.width}),
            .dropout = {.p = 0.1}};
  }
};

// With `dbranch`, that is the Dropout of dx with `row`.
// With `dy_row`, row r of the gradient is dy_scale[r] times row dy_row[r] of dy.
struct LayerNormBackward {
  static constexpr const char* kName = "layer_norm_backward";
  static constexpr Family kFamily = Family::kNorms;
  Tensor dx;                           // T [K, C], optional
  Tensor added;                        // T [K, C], added to dx, optional; may be dx
  Tensor dx_norm;                      // S [K], optional, only with dx
  Tensor dgamma;                       // S [C], optional; given exactly when dbeta is
  Tensor dbeta;                        // S [C], optional
  Tensor dy;                           // T [K, C]; with dy_row of as many rows as those need
  Tensor dy_row;                       // i32 [K], optional; dx is then no part of dy
  Tensor dy_scale;                     // S [K], given exactly when dy_row is
  Tensor x_full;                       // T [R, C]
  Tensor center_full;                  // S [R]
  Tensor rstd_full;                    // S [R]
  Tensor gamma;                        // T [C]
  Tensor row;                          // i32 [K], optional
  bool accumulate_parameters = false;  // dgamma += instead of dgamma =, likewise dbeta
  Tensor dbranch;                      // T [K, C], optional, only with dx
  Tensor dbranch_norm;                 // S [K], optional
  NormDropout dropout;
  template <class V>
  void visit(V&& v) const {
    v.out("dx", dx, added.data == dx.data), v.out("dx_norm", dx_norm);
    if (added.data != dx.data) v.in("added", added);
    v.out("dgamma", dgamma, accumulate_parameters), v.out("dbeta", dbeta, accumulate_parameters);
    v.in("dy", dy), v.in("dy_row", dy_row), v.in("dy_scale", dy_scale);
    v.in("x_full", x_full), v.in("center_full", center_full);
    v.in("rstd_full", rstd_full), v.in("gamma", gamma), v.in("row", row);
    v.out("dbranch", dbranch), v.out("dbranch_norm", dbranch_norm), v.in("step", dropout.step);
  }

  std::int64_t rows() const { return dy_row ? dy_row.elements() : dy.rows(); }
  Dropout drop() const {
    return {.y = dbranch,
            .y_norm = dbranch_norm,
            .x = dx,
            .row = row,
            .p = dropout.p,
            .key = dropout.key,
            .step = dropout.step};
  }

  void check() const {
    VCAS_CHECK(bool{dgamma} == bool{dbeta}, "dgamma and dbeta come together");
    VCAS_CHECK(dx || !dbranch, "the gradient of a branch without that of the sum");
    VCAS_CHECK(bool{dy_row} == bool{dy_scale}, "dy_row and dy_scale come together");
    VCAS_CHECK(!dy_row || !dx || dx.data != dy.data, "dx overwrites rows that dy_row names");
    check_hold(kName, rows() * dy.width(), {{"dx", dx}, {"added", added}, {"dbranch", dbranch}});
    check_hold(kName, rows(), {{"dx_norm", dx_norm}, {"dbranch_norm", dbranch_norm}});
    check_hold(kName, rows(), {{"row", row}, {"dy_scale", dy_scale}});
    check_hold(kName, dy.width(), {{"dgamma", dgamma}, {"dbeta", dbeta}, {"gamma", gamma}});
  }
  Work work() const { return {.rows_read = rows_named(row)}; }
  Rounding rounding(std::string_view output, const auto& values) const {
    const double largest = values.top(dy) * (dy_scale ? values.top(dy_scale) : 1);
    const double inverse = values.top(rstd_full);
    const double normal = 1 + values.top(x_full) * inverse;
    const Rounding of_dx{dy.width(),
                         largest * values.top(gamma) * inverse * normal + values.top(added)};
    if (output == "dx") return of_dx;
    if (output == "dx_norm") return of_norm(of_dx, dx.width());
    const Rounding of_dbranch{of_dx.length, of_dx.magnitude / (1 - dropout.p)};
    if (output == "dbranch") return of_dbranch;
    if (output == "dbranch_norm") return of_norm(of_dbranch, dx.width());
    if (output == "dgamma") return {rows(), largest * normal + values.top(dgamma)};
    return {rows(), largest + values.top(dbeta)};
  }
  static LayerNormBackward sample(auto& s) {
    const LayerNormForward forward = LayerNormForward::sample(s);
    s.run(forward);
    return {.dx = s.empty({s.kept_rows(), s.size.width}),
            .dx_norm = s.wide({s.kept_rows()}),
            .dgamma = s.wide({s.size.width}),
            .dbeta = s.wide({s.size.width}),
            .dy = s.random({s.kept_rows(), s.size.width}),
            .x_full = forward.x,
            .center_full = forward.center,
            .rstd_full = forward.rstd,
            .gamma = forward.gamma,
            .row = s.row(),
            .dbranch = s.empty({s.kept_rows(), s.size.width}),
            .dbranch_norm = s.wide({s.kept_rows()}),
            .dropout = {.p = 0.1}};
  }
};

}  // namespace vcas

// clang-format off
#define VCAS_LAYER_NORM_OPS(X) \
  X(LayerNormForward) X(LayerNormBackward)
// clang-format on
