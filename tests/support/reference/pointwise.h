// Operations of one number.
#pragma once

#include "tests/support/reference/tensors.h"

namespace vcas::reference {

// M of kernels/ops/pointwise.h.
struct Math {
  static double exp_negative(double x) { return std::exp(x); }
  static double tanh(double x) { return std::tanh(x); }
  static double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
  static double gelu_slope(double x) {
    return normal_cdf(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0));
  }
};

template <class P>
void run(const PointwiseForward<P>& a) {
  for (std::int64_t i = 0; i < a.y.elements(); ++i) f(a.y)[i] = P::template value<Math>(f(a.x)[i]);
  put_norms(a.y_norm, a.y);
}

template <class P>
void run(const PointwiseBackward<P>& a) {
  const std::int64_t c = a.dx.width();
  for (std::int64_t r = 0; r < a.dx.rows(); ++r)
    for (std::int64_t i = 0; i < c; ++i) {
      const double saved = f(a.saved_full)[index_at(a.row, r) * c + i];
      f(a.dx)[r * c + i] = f(a.dy)[r * c + i] * P::template slope<Math>(saved);
    }
  put_norms(a.dx_norm, a.dx);
}

}  // namespace vcas::reference
