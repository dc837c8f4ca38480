// Norms over sets of rows.
#pragma once

#include "tests/support/reference/tensors.h"

namespace vcas::reference {

inline void run(const GroupNormForward& a) {
  const std::int64_t c = a.x.width(), groups = a.mean.width(), columns = c / groups;
  for (std::int64_t n = 0; n < a.mean.rows(); ++n) {
    const std::int64_t begin = a.offsets ? i64(a.offsets)[n] : 0;
    const std::int64_t end = a.offsets ? i64(a.offsets)[n + 1] : a.x.rows();
    for (std::int64_t g = 0; g < groups; ++g) {
      const auto count = static_cast<double>((end - begin) * columns);
      double mean = 0, variance = 0;
      for (std::int64_t r = begin; r < end; ++r)
        for (std::int64_t i = g * columns; i < (g + 1) * columns; ++i)
          mean += f(a.x)[r * c + i] / count;
      for (std::int64_t r = begin; r < end; ++r)
        for (std::int64_t i = g * columns; i < (g + 1) * columns; ++i)
          variance += std::pow(f(a.x)[r * c + i] - mean, 2) / count;
      if (a.given_mean) {
        mean = f(a.given_mean)[g];
        variance = f(a.given_var)[g];
      }
      if (begin == end && !a.given_mean) continue;
      const double rstd = 1 / std::sqrt(variance + a.eps);
      f(a.mean)[n * groups + g] = mean;
      f(a.rstd)[n * groups + g] = rstd;
      if (a.running_mean) {
        f(a.running_mean)[g] = (1 - a.momentum) * f(a.running_mean)[g] + a.momentum * mean;
        f(a.running_var)[g] = (1 - a.momentum) * f(a.running_var)[g] +
                              a.momentum * variance * count / std::max(count - 1, 1.0);
      }
      for (std::int64_t r = begin; r < end; ++r)
        for (std::int64_t i = g * columns; i < (g + 1) * columns; ++i)
          f(a.y)[r * c + i] = (f(a.x)[r * c + i] - mean) * rstd * f(a.gamma)[i] + f(a.beta)[i];
    }
  }
  put_norms(a.y_norm, a.y);
}

inline void run(const GroupNormBackward& a) {
  const std::int64_t c = a.dy.width(), groups = a.mean_full.width(), columns = c / groups;
  for (const Tensor& sum : {a.dgamma, a.dbeta})
    if (sum && !a.accumulate_parameters) std::fill_n(f(sum), c, 0.0);
  for (std::int64_t n = 0; n < a.sets(); ++n) {
    const std::int64_t begin = a.offsets ? i64(a.offsets)[n] : 0;
    const std::int64_t end = a.offsets ? i64(a.offsets)[n + 1] : a.dy.rows();
    const std::int64_t of = a.mean_full.rows() == 1 ? 0 : index_at(a.item, n);
    for (std::int64_t g = 0; g < groups; ++g) {
      const double mean = f(a.mean_full)[of * groups + g], rstd = f(a.rstd_full)[of * groups + g];
      const auto count = static_cast<double>((a.offsets ? end - begin : a.x_full.rows()) * columns);
      const auto normal = [&](std::int64_t r, std::int64_t i) {
        return (f(a.x_full)[index_at(a.row, r) * c + i] - mean) * rstd;
      };
      double mean_g = 0, mean_gh = 0;
      for (std::int64_t r = begin; r < end; ++r)
        for (std::int64_t i = g * columns; i < (g + 1) * columns; ++i) {
          const double dy = f(a.dy)[r * c + i];
          if (!a.fixed) mean_g += dy * f(a.gamma)[i] / count;
          if (!a.fixed) mean_gh += dy * f(a.gamma)[i] * normal(r, i) / count;
          if (a.dgamma) f(a.dgamma)[i] += dy * normal(r, i);
          if (a.dbeta) f(a.dbeta)[i] += dy;
        }
      const std::int64_t echoes = a.dx ? a.dx.rows() - a.dy.rows() : 0;
      for (std::int64_t r = begin; a.dx && r < end + echoes; ++r)
        for (std::int64_t i = g * columns; i < (g + 1) * columns; ++i) {
          const double own = r < end ? f(a.dy)[r * c + i] * f(a.gamma)[i] : 0;
          f(a.dx)[r * c + i] =
              (a.added ? f(a.added)[r * c + i] : 0) +
              (r < end ? 1 : a.echo_scale) * rstd * (own - mean_g - normal(r, i) * mean_gh);
        }
    }
  }
  put_norms(a.dx_norm, a.dx);
}

}  // namespace vcas::reference
