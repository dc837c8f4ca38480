// Norms over sets of rows: group norm (Wu & He 2018) and batch norm (Ioffe & Szegedy 2015).
#pragma once

#include "kernels/ops/op.h"

namespace vcas {

// y = (x - mean) * rstd * gamma + beta, mean and rstd = 1 / sqrt(var + eps) of each set and group.
// A set is some rows, a group C / G columns side by side. Group norm: the rows of an item are a
// set. Batch norm: all rows are one set, and each column is a group.
struct GroupNormForward {
  static constexpr const char* kName = "group_norm_forward";
  static constexpr Family kFamily = Family::kNorms;
  Tensor y;             // T [R, C]
  Tensor y_norm;        // S [R], optional
  Tensor mean;          // S [N, G]
  Tensor rstd;          // S [N, G]
  Tensor running_mean;  // S [G], optional, only for one set: += momentum (mean - running_mean)
  Tensor running_var;   // S [G], likewise, of the variance times n / (n - 1), n entries of a group
  Tensor x;             // T [R, C]
  Tensor gamma;         // T [C]
  Tensor beta;          // T [C]
  Tensor offsets;       // i64 [N + 1], optional: all rows are one set
  Tensor given_mean;    // S [G], optional: with given_var in place of the statistics of x
  Tensor given_var;     // S [G], optional
  double eps = 1e-5, momentum = 0.1;
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.out("y_norm", y_norm), v.out("mean", mean), v.out("rstd", rstd);
    v.out("running_mean", running_mean, true), v.out("running_var", running_var, true);
    v.in("x", x), v.in("gamma", gamma), v.in("beta", beta), v.in("offsets", offsets);
    v.in("given_mean", given_mean), v.in("given_var", given_var);
  }

  void check() const {
    check_equal(kName, y, x);
    check_hold(kName, y.rows(), {{"y_norm", y_norm}});
    check_hold(kName, y.width(), {{"gamma", gamma}, {"beta", beta}});
    VCAS_CHECK(mean.width() > 0 && x.width() % mean.width() == 0 &&
                   mean.rows() == (offsets ? offsets.elements() - 1 : 1) &&
                   mean.shape == rstd.shape,
               "statistics " + mean.shape.text() + " of rows " + x.shape.text());
    VCAS_CHECK(bool{given_mean} == bool{given_var} && (!given_mean || !offsets) &&
                   (!running_mean || (!offsets && !given_mean)),
               "running statistics of several sets");
  }
  // Statistics, y.
  Work work() const { return {.launches = 2}; }
  Rounding rounding(std::string_view output, const auto& values) const {
    const std::int64_t length = x.rows();
    const double largest = values.top(x), inverse = values.top(rstd);
    if (output == "mean" || output == "running_mean") return {length, largest};
    if (output == "rstd") return {length, inverse * (1 + largest * inverse)};
    if (output == "running_var") return {length, largest * largest + values.top(running_var)};
    const Rounding of_y{length, (1 + largest * inverse) * values.top(gamma) + values.top(beta)};
    return output == "y_norm" ? of_norm(of_y, y.width()) : of_y;
  }
  static GroupNormForward sample(auto& s) {
    const bool batch = s.size.convolution || s.every_other_time();
    const std::int64_t sets = batch ? 1 : s.size.items, groups = batch ? s.size.width : 4;
    return {.y = s.empty({s.rows(), s.size.width}),
            .y_norm = s.wide({s.rows()}),
            .mean = s.wide({sets, groups}),
            .rstd = s.wide({sets, groups}),
            .x = s.random({s.rows(), s.size.width}),
            .gamma = s.random({s.size.width}),
            .beta = s.random({s.size.width}),
            .offsets = batch ? Tensor{} : s.offsets(s.size.items)};
  }
};

// With h = (x - mean) rstd, g = dy gamma, and means over the n entries of a set and group:
// dx = rstd (g - mean(g) - h mean(g h)), dgamma = the sum of dy h over the rows, dbeta = that of
// dy. Without offsets the set has all rows of x_full. dy is 0 in those that it lacks.
// dx may have rows beyond those of dy, where g is 0: they are multiplied by echo_scale.
struct GroupNormBackward {
  static constexpr const char* kName = "group_norm_backward";
  static constexpr Family kFamily = Family::kNorms;
  Tensor dx;                           // T [K', C], optional; K' > K: only for one set
  Tensor added;                        // T [K', C], added to dx, optional; may be dx
  Tensor dx_norm;                      // S [K'], optional, only with dx
  Tensor dgamma;                       // S [C], optional; given exactly when dbeta is
  Tensor dbeta;                        // S [C], optional
  Tensor dy;                           // T [K, C]
  Tensor x_full;                       // T [R, C]
  Tensor mean_full;                    // S [N, G]; N = 1: of all sets
  Tensor rstd_full;                    // S [N, G]
  Tensor gamma;                        // T [C]
  Tensor row;                          // i32 [K'], optional
  Tensor item;                         // i32 [sets], optional: set -> row of mean_full
  Tensor offsets;                      // i64 [sets + 1], optional: rows of the sets in dy
  double echo_scale = 0;               // of the rows beyond those of dy
  bool fixed = false;                  // statistics were given: dx = rstd g
  bool accumulate_parameters = false;  // dgamma += instead of dgamma =, dbeta too
  template <class V>
  void visit(V&& v) const {
    v.out("dx", dx, added.data == dx.data), v.out("dx_norm", dx_norm);
    if (added.data != dx.data) v.in("added", added);
    v.out("dgamma", dgamma, accumulate_parameters), v.out("dbeta", dbeta, accumulate_parameters);
    v.in("dy", dy), v.in("x_full", x_full), v.in("mean_full", mean_full);
    v.in("rstd_full", rstd_full), v.in("gamma", gamma), v.in("row", row), v.in("item", item);
    v.in("offsets", offsets);
  }

  std::int64_t sets() const { return offsets ? offsets.elements() - 1 : 1; }
  void check() const {
    VCAS_CHECK(bool{dgamma} == bool{dbeta}, "dgamma and dbeta come together");
    VCAS_CHECK(mean_full.width() > 0 && dy.width() % mean_full.width() == 0 &&
                   (item || mean_full.rows() == 1 || mean_full.rows() == sets()),
               "statistics " + mean_full.shape.text() + " of " + std::to_string(sets()) +
                   " sets of rows " + dy.shape.text());
    VCAS_CHECK(!dx || dx.rows() == dy.rows() || (dx.rows() > dy.rows() && !offsets),
               "dx " + dx.shape.text() + " of dy " + dy.shape.text());
  }
  // Means, with the gradients of parameters of few sets; dx.
  Work work() const {
    return {.rows_read = rows_named(row), .launches = 1 + bool{dx} + (dgamma && offsets)};
  }
  Rounding rounding(std::string_view output, const auto& values) const {
    const double largest = values.top(dy), inverse = values.top(rstd_full);
    const double normal = 1 + 2 * values.top(x_full) * inverse;
    const Rounding of_dx{
        dy.rows() + dy.width(),
        std::max(echo_scale, 1.0) * largest * values.top(gamma) * inverse * normal * normal +
            values.top(added)};
    if (output == "dx") return of_dx;
    if (output == "dx_norm") return of_norm(of_dx, dx.width());
    if (output == "dgamma") return {dy.rows(), largest * normal + values.top(dgamma)};
    return {dy.rows(), largest + values.top(dbeta)};
  }
  static GroupNormBackward sample(auto& s) {
    const GroupNormForward forward = GroupNormForward::sample(s);
    s.run(forward);
    const bool batch = !forward.offsets;
    return {.dx = s.empty({s.kept_rows(), s.size.width}),
            .dx_norm = s.wide({s.kept_rows()}),
            .dgamma = s.wide({s.size.width}),
            .dbeta = s.wide({s.size.width}),
            .dy = s.random({s.kept_rows(), s.size.width}),
            .x_full = forward.x,
            .mean_full = forward.mean,
            .rstd_full = forward.rstd,
            .gamma = forward.gamma,
            .row = s.row(),
            .item = batch ? Tensor{} : s.item(),
            .offsets = batch ? Tensor{} : s.offsets(s.kept_items())};
  }
};

}  // namespace vcas

// clang-format off
#define VCAS_GROUP_NORM_OPS(X) \
  X(GroupNormForward) X(GroupNormBackward)
// clang-format on
