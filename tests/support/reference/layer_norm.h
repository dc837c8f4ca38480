// Layer norm.
#pragma once

#include "tests/support/reference/elementwise.h"

namespace vcas::reference {

inline void run(const LayerNormForward& a) {
  if (a.branch) run(a.sum());
  const std::int64_t c = a.y.width();
  for (std::int64_t r = 0; r < a.y.rows(); ++r) {
    const double* x = f(a.x) + r * c;
    double mean = 0, variance = 0;
    for (std::int64_t i = 0; i < c; ++i) mean += x[i] / static_cast<double>(c);
    for (std::int64_t i = 0; i < c; ++i)
      variance += std::pow(x[i] - mean, 2) / static_cast<double>(c);
    f(a.center)[r] = mean - x[0];
    f(a.rstd)[r] = 1 / std::sqrt(variance + a.eps);
    for (std::int64_t i = 0; i < c; ++i)
      f(a.y)[r * c + i] = (x[i] - mean) * f(a.rstd)[r] * f(a.gamma)[i] + f(a.beta)[i];
  }
  put_norms(a.y_norm, a.y);
}

inline void run(const LayerNormBackward& a) {
  const std::int64_t c = a.dy.width();
  for (const Tensor& sum : {a.dgamma, a.dbeta})
    if (sum && !a.accumulate_parameters) std::fill_n(f(sum), c, 0.0);
  for (std::int64_t r = 0; r < a.rows(); ++r) {
    const std::int64_t full = index_at(a.row, r);
    const double rstd = f(a.rstd_full)[full];
    const double mean = f(a.x_full)[full * c] + f(a.center_full)[full];
    std::vector<double> dy(f(a.dy) + index_at(a.dy_row, r) * c,
                           f(a.dy) + (index_at(a.dy_row, r) + 1) * c);
    for (double& of : dy) of *= factor_at(a.dy_scale, r);
    std::vector<double> normal(static_cast<std::size_t>(c));
    double mean_g = 0, mean_gh = 0;
    for (std::int64_t i = 0; i < c; ++i) {
      double& h = normal[static_cast<std::size_t>(i)];
      h = (f(a.x_full)[full * c + i] - mean) * rstd;
      mean_g += dy[i] * f(a.gamma)[i] / static_cast<double>(c);
      mean_gh += dy[i] * f(a.gamma)[i] * h / static_cast<double>(c);
      if (a.dgamma) {
        f(a.dgamma)[i] += dy[i] * h;
        f(a.dbeta)[i] += dy[i];
      }
    }
    for (std::int64_t i = 0; a.dx && i < c; ++i)
      f(a.dx)[r * c + i] =
          (a.added ? f(a.added)[r * c + i] : 0) +
          rstd * (dy[i] * f(a.gamma)[i] - mean_g - normal[static_cast<std::size_t>(i)] * mean_gh);
  }
  put_norms(a.dx_norm, a.dx);
  if (a.dbranch) run(a.drop());
}

}  // namespace vcas::reference
