// Updates of parameters.
#pragma once

#include "tests/support/reference/tensors.h"

namespace vcas::reference {

template <class Args>
double clipping(const Args& a) {
  const double norm = std::sqrt(f(a.squared_norm)[0]);
  return a.max_norm > 0 ? std::min(1.0, a.max_norm / norm) : 1;
}

inline void run(const AdamStep& a) {
  if (!std::isfinite(f(a.squared_norm)[0])) return;
  const double steps = static_cast<double>(a.step);
  for (std::int64_t i = 0; i < a.param.elements(); ++i) {
    double& param = f(a.param)[i];
    double& m = f(a.first_moment)[i];
    double& v = f(a.second_moment)[i];
    double g = f(a.grad)[i] * clipping(a);
    if (!a.decoupled) g += a.weight_decay * param;
    m = a.beta1 * m + (1 - a.beta1) * g;
    v = a.beta2 * v + (1 - a.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(a.beta1, steps));
    const double v_hat = v / (1 - std::pow(a.beta2, steps));
    if (a.decoupled) param -= a.learning_rate * a.weight_decay * param;
    param -= a.learning_rate * m_hat / (std::sqrt(v_hat) + a.eps);
    if (a.rounded) f(a.rounded)[i] = param;
  }
}

inline void run(const SgdStep& a) {
  if (!std::isfinite(f(a.squared_norm)[0])) return;
  for (std::int64_t i = 0; i < a.param.elements(); ++i) {
    double& m = f(a.momentum)[i];
    m = a.mu * m + (f(a.grad)[i] * clipping(a) + a.weight_decay * f(a.param)[i]);
    f(a.param)[i] -= a.learning_rate * m;
    if (a.rounded) f(a.rounded)[i] = f(a.param)[i];
  }
}

inline void run(const SumSquares& a) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.x.elements(); ++i) sum += f(a.x)[i] * f(a.x)[i];
  if (a.earlier && !std::isfinite(f(a.earlier)[0])) sum = std::nan("");
  f(a.sum)[0] = sum;
}

}  // namespace vcas::reference
