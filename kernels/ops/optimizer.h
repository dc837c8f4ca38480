// Updates of parameters.
#pragma once

#include <cmath>
#include <vector>

#include "kernels/ops/op.h"

namespace vcas {

// An update takes the gradient times `clip_factor`, f64 [1], of the operation of that name.
// If it is not finite, nothing changes. `rounded` gets the new parameters too.

// Adam (Kingma & Ba 2015) with bias correction.
// Weight decay is decoupled (Loshchilov & Hutter 2019), or added to the gradient.
struct AdamStep {
  static constexpr const char* kName = "adam_step";
  static constexpr Family kFamily = Family::kOptimizer;
  Tensor param;          // S [n]
  Tensor rounded;        // bf16 [n], optional
  Tensor first_moment;   // S [n]
  Tensor second_moment;  // S [n]
  Tensor grad;           // S [n]
  Tensor clip_factor;    // f64 [1]
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  std::int64_t decayed = kAll;  // only so many parameters have weight decay, the first ones
  std::int64_t step = 1;        // from 1
  bool decoupled = true;
  template <class V>
  void visit(V&& v) const {
    v.out("param", param, true), v.out("rounded", rounded);
    v.out("first_moment", first_moment, true), v.out("second_moment", second_moment, true);
    v.in("grad", grad), v.in("clip_factor", clip_factor);
  }

  void check() const {
    for (const Tensor& of : {first_moment, second_moment, grad}) check_equal(kName, param, of);
  }
  Work work() const { return {}; }
  // An update may cancel the parameter, and a gradient the moment. Squares do not cancel.
  Rounding rounding(std::string_view output, const auto& values) const {
    if (output == "param") return {1, values.top(param)};
    if (output == "first_moment") return {1, values.top(grad)};
    return {};
  }
  static AdamStep sample(auto& s) {
    const std::int64_t n = s.size.hidden * s.size.width;
    return {.param = s.wide_random({n}),
            .rounded = s.rounded({n}),
            .first_moment = s.wide_random({n}),
            .second_moment = s.positive(n),
            .grad = s.wide_random({n}),
            .clip_factor = s.holding(std::vector{0.5}),
            .learning_rate = 1e-3,
            .weight_decay = 0.01,
            .step = 10};
  }
};

template <class T>
struct AdamFactors {
  T learning_rate, eps;
  T gain1, gain2;       // 1 - beta: of beta in f32 it would have three digits less
  T shrink;             // parameter factor of decoupled weight decay, 1 = none
  T decay;              // added to the gradient per parameter, 0 = none
  T first_correction;   // 1 / (1 - beta1^step)
  T second_correction;  // 1 / (1 - beta2^step)
};

template <class T>
AdamFactors<T> adam_factors(const AdamStep& args) {
  const double steps = static_cast<double>(args.step);
  const double shrink = args.decoupled ? 1 - args.learning_rate * args.weight_decay : 1;
  return {.learning_rate = static_cast<T>(args.learning_rate),
          .eps = static_cast<T>(args.eps),
          .gain1 = static_cast<T>(1 - args.beta1),
          .gain2 = static_cast<T>(1 - args.beta2),
          .shrink = static_cast<T>(shrink),
          .decay = static_cast<T>(args.decoupled ? 0 : args.weight_decay),
          .first_correction = static_cast<T>(1 / (1 - std::pow(args.beta1, steps))),
          .second_correction = static_cast<T>(1 / (1 - std::pow(args.beta2, steps)))};
}

// g = clip_factor * grad + weight_decay * param; momentum = mu * momentum + g;
// param -= lr * momentum, or with nesterov lr * (g + mu * momentum).
struct SgdStep {
  static constexpr const char* kName = "sgd_step";
  static constexpr Family kFamily = Family::kOptimizer;
  Tensor param;        // S [n]
  Tensor rounded;      // bf16 [n], optional
  Tensor momentum;     // S [n]
  Tensor grad;         // S [n]
  Tensor clip_factor;  // f64 [1]
  double learning_rate = 0, mu = 0.9, weight_decay = 0;
  std::int64_t decayed = kAll;  // as in AdamStep
  bool nesterov = false;
  template <class V>
  void visit(V&& v) const {
    v.out("param", param, true), v.out("rounded", rounded), v.out("momentum", momentum, true);
    v.in("grad", grad), v.in("clip_factor", clip_factor);
  }

  void check() const {
    for (const Tensor& of : {momentum, grad}) check_equal(kName, param, of);
  }
  Work work() const { return {}; }
  Rounding rounding(std::string_view output, const auto& values) const {
    if (output == "param") return {1, values.top(param)};
    return {1, values.top(grad)};
  }
  static SgdStep sample(auto& s) {
    const std::int64_t n = s.size.hidden * s.size.width;
    return {.param = s.wide_random({n}),
            .rounded = s.rounded({n}),
            .momentum = s.wide_random({n}),
            .grad = s.wide_random({n}),
            .clip_factor = s.holding(std::vector{0.5}),
            .learning_rate = 1e-3,
            .weight_decay = 0.01};
  }
};

// sum[0] = or += sum of x^2 + 0 * earlier[0], in a fixed order. It is not finite if `earlier` is
// not.
struct SumSquares {
  static constexpr const char* kName = "sum_squares";
  static constexpr Family kFamily = Family::kOptimizer;
  Tensor sum;      // f64 [1]
  Tensor x;        // T or S
  Tensor earlier;  // f64 [1], optional
  bool accumulate = false;
  template <class V>
  void visit(V&& v) const {
    v.out("sum", sum, accumulate), v.in("x", x), v.in("earlier", earlier);
  }

  Work work() const { return {}; }
  Rounding rounding(std::string_view, const auto&) const { return {x.elements()}; }
  static SumSquares sample(auto& s) {
    return {.sum = s.empty({1}, DType::kF64), .x = s.wide_random({s.rows(), s.size.hidden})};
  }
};

// What updates multiply a gradient by, as clip_factor of kernels/clipping.h has it.
struct ClipFactor {
  static constexpr const char* kName = "clip_factor";
  static constexpr Family kFamily = Family::kOptimizer;
  Tensor factor;        // f64 [1]
  Tensor predicted;     // f64 [1], optional
  Tensor squared_norm;  // f64 [1]
  double max_norm = 0;  // 0: no gradient is too long
  template <class V>
  void visit(V&& v) const {
    v.out("factor", factor), v.out("predicted", predicted, true);
    v.in("squared_norm", squared_norm);
  }

  Work work() const { return {}; }
  Rounding rounding(std::string_view, const auto&) const { return {}; }
  static ClipFactor sample(auto& s) {
    return {.factor = s.empty({1}, DType::kF64),
            .predicted = s.holding(std::vector{9.0}),
            .squared_norm = s.holding(std::vector{4.0}),
            .max_norm = 1};
  }
};

}  // namespace vcas

// clang-format off
#define VCAS_OPTIMIZER_OPS(X) \
  X(AdamStep) X(SgdStep) X(SumSquares) X(ClipFactor)
// clang-format on
