// Losses.
#pragma once

#include "tests/support/reference/tensors.h"

namespace vcas::reference {

inline std::vector<double> log_softmax(const double* x, std::int64_t n) {
  const double largest = *std::max_element(x, x + n);
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - largest);
  std::vector<double> out;
  for (std::int64_t i = 0; i < n; ++i) out.push_back(x[i] - largest - std::log(sum));
  return out;
}

inline double target(double smoothing, std::int64_t classes, bool is_label) {
  return (is_label ? 1 - smoothing : 0) + smoothing / static_cast<double>(classes);
}

inline void run(const CrossEntropyForward& a) {
  const std::int64_t classes = a.logits.width();
  for (std::int64_t n = 0; n < a.logits.rows(); ++n) {
    const double* x = f(a.logits) + n * classes;
    const auto log_p = log_softmax(x, classes);
    double loss = 0;
    for (std::int64_t i = 0; i < classes; ++i)
      loss -=
          target(a.smoothing, classes, i == i32(a.labels)[n]) * log_p[static_cast<std::size_t>(i)];
    f(a.loss)[n] = factor_at(a.weight, n) * loss;
    i32(a.correct)[n] = std::max_element(x, x + classes) - x == i32(a.labels)[n];
  }
}

inline void run(const CrossEntropyBackward& a) {
  const std::int64_t classes = a.logits.width();
  for (std::int64_t n = 0; n < a.logits.rows(); ++n) {
    const auto log_p = log_softmax(f(a.logits) + n * classes, classes);
    for (std::int64_t i = 0; i < classes; ++i)
      f(a.dlogits)[n * classes + i] = a.scale * factor_at(a.weight, n) *
                                      (std::exp(log_p[static_cast<std::size_t>(i)]) -
                                       target(a.smoothing, classes, i == i32(a.labels)[n]));
  }
}

inline void run(const SquaredErrorForward& a) {
  for (std::int64_t n = 0; n < a.loss.elements(); ++n)
    f(a.loss)[n] = factor_at(a.weight, n) *
                   std::pow(f(a.prediction)[n] - static_cast<double>(a.target.ptr<float>()[n]), 2);
}

inline void run(const SquaredErrorBackward& a) {
  for (std::int64_t n = 0; n < a.dprediction.elements(); ++n)
    f(a.dprediction)[n] = a.scale * factor_at(a.weight, n) * 2 *
                          (f(a.prediction)[n] - static_cast<double>(a.target.ptr<float>()[n]));
}

}  // namespace vcas::reference
