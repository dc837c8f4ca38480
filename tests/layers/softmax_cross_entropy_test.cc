#include <cmath>

#include "tests/support/check_layer.h"

using namespace vcas;

namespace {

constexpr std::size_t kClasses = 7;

std::vector<double> cross_entropy(const LayerValues& v, double smoothing) {
  std::vector<double> loss;
  for (std::size_t item = 0; item < v.inputs[1].size(); ++item) {
    const double* logits = &v.inputs[0][item * kClasses];
    double sum = 0, value = 0;
    for (std::size_t c = 0; c < kClasses; ++c) sum += std::exp(logits[c]);
    for (std::size_t c = 0; c < kClasses; ++c) {
      const bool label = c == static_cast<std::size_t>(v.inputs[1][item]);
      value -= ((label ? 1 - smoothing : 0) + smoothing / kClasses) * (logits[c] - std::log(sum));
    }
    loss.push_back(v.inputs.size() > 2 ? v.inputs[2][item] * value : value);
  }
  return loss;
}

}  // namespace

TEST_CASE("softmax cross entropy", "[layer]") {
  for (const double smoothing : {0.0, 0.1})
    check_layer({.kind = "softmax_cross_entropy",
                 .config = {{"label_smoothing", smoothing}},
                 .inputs = {{.width = kClasses, .layout = Layout::items(1)},
                            {.layout = Layout::items(1), .integers = kClasses}},
                 .loss = true,
                 .formula = [=](const LayerValues& v) { return cross_entropy(v, smoothing); }});
}

TEST_CASE("softmax cross entropy of weighted items", "[layer]") {
  check_layer({.kind = "softmax_cross_entropy",
               .config = {{"label_smoothing", 0.1}},
               .inputs = {{.width = kClasses, .layout = Layout::items(1)},
                          {.layout = Layout::items(1), .integers = kClasses},
                          {.layout = Layout::items(1), .image = true}},
               .loss = true,
               .formula = [](const LayerValues& v) { return cross_entropy(v, 0.1); }});
  CHECK_THAT(layer_faults({.kind = "softmax_cross_entropy",
                           .inputs = {{.width = kClasses, .layout = Layout::items(1)},
                                      {.layout = Layout::items(1), .integers = kClasses},
                                      {.width = 2, .layout = Layout::items(3), .image = true}},
                           .loss = true})
                 .at(0),
             ContainsSubstring("weights are one number a row of the loss, got width 2 in 3 rows an "
                               "item, and the loss has 1"));
}

TEST_CASE("softmax cross entropy of the masked positions", "[layer]") {
  check_layer({.kind = "softmax_cross_entropy",
               .inputs = {{.width = kClasses, .layout = Layout::masked()},
                          {.layout = Layout::masked(), .integers = kClasses}},
               .loss = true,
               .formula = [](const LayerValues& v) { return cross_entropy(v, 0); }});
  CHECK_THAT(layer_faults({.kind = "softmax_cross_entropy",
                           .inputs = {{.width = kClasses, .layout = Layout::masked()},
                                      {.layout = Layout::items(1), .integers = kClasses}},
                           .loss = true})
                 .at(0),
             ContainsSubstring("masked and 1 rows an item"));
}

TEST_CASE("softmax cross entropy smooths labels in training alone", "[layer]") {
  const auto ops = make_ops("cpu");
  const auto layer = make_layer("softmax_cross_entropy", {{"label_smoothing", 0.1}});
  double logits[3] = {0, std::log(2), 0}, loss;
  std::int32_t label = 1, correct;
  const std::vector<ValueSpec> specs{{3, Layout::items(1), DType::kF64},
                                     {1, Layout::items(1), DType::kI32}};
  const std::vector<Tensor> inputs{{logits, DType::kF64, {1, 3}}, {&label, DType::kI32, {1, 1}}};
  const std::vector<Tensor> saved{{&correct, DType::kI32, {1, 1}}};
  Arena scratch;
  for (const bool training : {true, false}) {
    Exec exec{.ops = *ops, .scratch = scratch, .scratch_beside = scratch, .training = training};
    const double share = training ? 0.1 / 3 : 0;  // of the labels that are wrong
    layer->forward(exec, {.inputs = inputs,
                          .output = {&loss, DType::kF64, {1, 1}},
                          .saved = saved,
                          .parameters = {},
                          .input_specs = specs,
                          .rows = {}});
    CHECK_THAT(loss, WithinAbs(std::log(4) - (1 - 2 * share) * std::log(2), 1e-12));
  }
}

TEST_CASE("softmax cross entropy keeps whether the largest logit is the label's", "[layer]") {
  const auto ops = make_ops("cpu");
  const auto layer = make_layer("softmax_cross_entropy");
  float logits[3][3] = {{1, 5, 2}, {1, 5, 2}, {4, 0, 4}};
  std::int32_t labels[3] = {1, 2, 0}, correct[3] = {-1, -1, -1};
  float loss[3];
  const std::vector<ValueSpec> specs{{3, Layout::items(1), DType::kF32},
                                     {1, Layout::items(1), DType::kI32}};
  const std::vector<Tensor> inputs{{logits, DType::kF32, {3, 3}}, {labels, DType::kI32, {3, 1}}};
  const std::vector<Tensor> saved{{correct, DType::kI32, {3, 1}}};
  Arena scratch;
  Exec exec{.ops = *ops, .scratch = scratch, .scratch_beside = scratch};
  layer->forward(exec, {.inputs = inputs,
                        .output = {loss, DType::kF32, {3, 1}},
                        .saved = saved,
                        .parameters = {},
                        .input_specs = specs,
                        .rows = {}});
  CHECK(correct[0] == 1);
  CHECK(correct[1] == 0);
  CHECK(correct[2] == 1);
}
