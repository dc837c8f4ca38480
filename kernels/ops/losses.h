// Losses of items. A weight multiplies the item's loss and its gradient. Without weights all are 1.
#pragma once

#include <cmath>

#include "kernels/ops/op.h"

namespace vcas {

inline double top_weight(const Tensor& weight, const auto& values) {
  return weight ? values.top(weight) : 1;
}

// loss[n] = - weight[n] * sum over classes of q log softmax(logits[n]),
// q = (1 - smoothing) onehot(label) + smoothing / classes.
// correct[n] = 1 if the largest logit is the label's. The first of equal logits counts.
struct CrossEntropyForward {
  static constexpr const char* kName = "cross_entropy_forward";
  static constexpr Family kFamily = Family::kRest;
  Tensor loss;     // S [N]
  Tensor correct;  // i32 [N]
  Tensor logits;   // T [N, classes]
  Tensor labels;   // i32 [N]
  Tensor weight;   // f32 [N], optional
  double smoothing = 0;
  template <class V>
  void visit(V&& v) const {
    v.out("loss", loss), v.out("correct", correct), v.in("logits", logits), v.in("labels", labels);
    v.in("weight", weight);
  }

  void check() const {
    check_hold(kName, logits.rows(), {{"loss", loss}, {"correct", correct}});
    check_hold(kName, logits.rows(), {{"labels", labels}, {"weight", weight}});
  }
  Work work() const { return {}; }
  Rounding rounding(std::string_view, const auto& values) const {
    return {logits.width(), top_weight(weight, values) * (1 + values.top(logits))};
  }
  static CrossEntropyForward sample(auto& s) {
    return {.loss = s.wide({s.size.items}),
            .correct = s.empty({s.size.items}, DType::kI32),
            .logits = s.random({s.size.items, s.size.classes}),
            .labels = s.below(s.size.items, s.size.classes),
            .weight = s.every_other_time() ? s.positive(s.size.items) : Tensor{},
            .smoothing = 0.1};
  }
};

// dlogits = scale * weight * (softmax(logits) - q)
struct CrossEntropyBackward {
  static constexpr const char* kName = "cross_entropy_backward";
  static constexpr Family kFamily = Family::kRest;
  Tensor dlogits;  // T [N, classes]
  Tensor logits;   // T [N, classes]
  Tensor labels;   // i32 [N]
  Tensor weight;   // f32 [N], optional
  double smoothing = 0;
  double scale = 1;
  template <class V>
  void visit(V&& v) const {
    v.out("dlogits", dlogits), v.in("logits", logits), v.in("labels", labels);
    v.in("weight", weight);
  }

  void check() const {
    check_hold(kName, logits.elements(), {{"dlogits", dlogits}});
    check_hold(kName, logits.rows(), {{"labels", labels}, {"weight", weight}});
  }
  Work work() const { return {}; }
  Rounding rounding(std::string_view, const auto& values) const {
    return {logits.width(),
            std::abs(scale) * top_weight(weight, values) * (1 + values.top(logits))};
  }
  static CrossEntropyBackward sample(auto& s) {
    return {.dlogits = s.empty({s.size.items, s.size.classes}),
            .logits = s.random({s.size.items, s.size.classes}),
            .labels = s.below(s.size.items, s.size.classes),
            .weight = s.every_other_time() ? s.positive(s.size.items) : Tensor{},
            .smoothing = 0.1,
            .scale = 1 / static_cast<double>(s.size.items)};
  }
};

// loss[n] = weight[n] * (prediction[n] - target[n])^2
struct SquaredErrorForward {
  static constexpr const char* kName = "squared_error_forward";
  static constexpr Family kFamily = Family::kRest;
  Tensor loss;        // S [N]
  Tensor prediction;  // T [N]
  Tensor target;      // f32 [N]
  Tensor weight;      // f32 [N], optional
  template <class V>
  void visit(V&& v) const {
    v.out("loss", loss), v.in("prediction", prediction), v.in("target", target);
    v.in("weight", weight);
  }

  void check() const {
    check_hold(kName, loss.elements(),
               {{"prediction", prediction}, {"target", target}, {"weight", weight}});
  }
  Work work() const { return {}; }
  Rounding rounding(std::string_view, const auto&) const { return {}; }
  static SquaredErrorForward sample(auto& s) {
    return {.loss = s.wide({s.size.items}),
            .prediction = s.random({s.size.items}),
            .target = s.wide_random({s.size.items}),
            .weight = s.every_other_time() ? s.positive(s.size.items) : Tensor{}};
  }
};

// dprediction = scale * weight * 2 (prediction - target)
struct SquaredErrorBackward {
  static constexpr const char* kName = "squared_error_backward";
  static constexpr Family kFamily = Family::kRest;
  Tensor dprediction;  // T [N]
  Tensor prediction;   // T [N]
  Tensor target;       // f32 [N]
  Tensor weight;       // f32 [N], optional
  double scale = 1;
  template <class V>
  void visit(V&& v) const {
    v.out("dprediction", dprediction), v.in("prediction", prediction), v.in("target", target);
    v.in("weight", weight);
  }

  void check() const {
    check_hold(kName, dprediction.elements(),
               {{"prediction", prediction}, {"target", target}, {"weight", weight}});
  }
  Work work() const { return {}; }
  Rounding rounding(std::string_view, const auto&) const { return {}; }
  static SquaredErrorBackward sample(auto& s) {
    return {.dprediction = s.empty({s.size.items}),
            .prediction = s.random({s.size.items}),
            .target = s.wide_random({s.size.items}),
            .weight = s.every_other_time() ? s.positive(s.size.items) : Tensor{},
            .scale = 1 / static_cast<double>(s.size.items)};
  }
};

}  // namespace vcas

// clang-format off
#define VCAS_LOSSES_OPS(X) \
  X(CrossEntropyForward) X(CrossEntropyBackward) X(SquaredErrorForward) \
  X(SquaredErrorBackward)
// clang-format on
