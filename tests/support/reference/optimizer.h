// Updates of parameters.
#pragma once

#include "tests/support/reference/tensors.h"

namespace vcas::reference {

inline void run(const AdamStep& a) {
  if (!std::isfinite(f(a.clip_factor)[0])) return;
  const double steps = static_cast<double>(a.step);
  for (std::int64_t i = 0; i < a.param.elements(); ++i) {
    double& param = f(a.param)[i];
    double& m = f(a.first_moment)[i];
    double& v = f(a.second_moment)[i];
    const double decay = i < a.decayed ? a.weight_decay : 0;
    double g = f(a.grad)[i] * f(a.clip_factor)[0];
    if (!a.decoupled) g += decay * param;
    m = a.beta1 * m + (1 - a.beta1) * g;
    v = a.beta2 * v + (1 - a.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(a.beta1, steps));
    const double v_hat = v / (1 - std::pow(a.beta2, steps));
    if (a.decoupled) param -= a.learning_rate * decay * param;
    param -= a.learning_rate * m_hat / (std::sqrt(v_hat) + a.eps);
    if (a.rounded) f(a.rounded)[i] = param;
  }
}

inline void run(const SgdStep& a) {
  if (!std::isfinite(f(a.clip_factor)[0])) return;
  for (std::int64_t i = 0; i < a.param.elements(); ++i) {
    double& m = f(a.momentum)[i];
    const double decay = i < a.decayed ? a.weight_decay : 0;
    const double g = f(a.grad)[i] * f(a.clip_factor)[0] + decay * f(a.param)[i];
    m = a.mu * m + g;
    f(a.param)[i] -= a.learning_rate * (a.nesterov ? g + a.mu * m : m);
    if (a.rounded) f(a.rounded)[i] = f(a.param)[i];
  }
}

inline void run(const SumSquares& a) {
  double sum = a.accumulate ? f(a.sum)[0] : 0;
  for (std::int64_t i = 0; i < a.x.elements(); ++i) sum += f(a.x)[i] * f(a.x)[i];
  if (a.earlier && !std::isfinite(f(a.earlier)[0])) sum = std::nan("");
  f(a.sum)[0] = sum;
}

inline void run(const ClipFactor& a) {
  const double norm = std::sqrt(f(a.squared_norm)[0]);
  double& factor = f(a.factor)[0];
  factor = 1;
  if (!std::isfinite(norm)) {
    factor = std::nan("");
  } else if (a.max_norm > 0 && !a.predicted) {
    factor = std::min(1.0, a.max_norm / norm);
  } else if (a.max_norm > 0) {
    double& predicted = f(a.predicted)[0];
    const double usual = predicted > 0 ? std::sqrt(predicted) : norm;
    const double most = std::max(10 * usual, a.max_norm), counted = std::min(norm, most);
    factor = std::min(1.0, a.max_norm / usual) * std::min(1.0, most / norm);
    predicted = 0.9 * usual * usual + 0.1 * counted * counted;
  }
}

}  // namespace vcas::reference
