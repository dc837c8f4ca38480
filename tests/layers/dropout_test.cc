#include "tests/support/check_layer.h"

using namespace vcas;

namespace {

std::vector<double> dropout_of_ones(double p, bool training, std::int64_t step) {
  const auto ops = make_ops("cpu");
  const auto layer = make_layer("dropout", {{"p", p}});
  std::vector<double> x(4096 * 4, 1), y(x.size());
  const std::vector<Tensor> inputs{{x.data(), DType::kF64, {4096, 4}}};
  const std::vector<ValueSpec> specs{{4, Layout::items(1), DType::kF64}};
  Arena scratch;
  Exec exec{.ops = *ops,
            .scratch = scratch,
            .scratch_beside = scratch,
            .dtype = DType::kF64,
            .seed = 1,
            .step = {&step, DType::kI64, {1}},
            .training = training,
            .site = 3};
  layer->forward(exec, {.inputs = inputs,
                        .output = {y.data(), DType::kF64, {4096, 4}},
                        .saved = {},
                        .parameters = {},
                        .input_specs = specs,
                        .rows = {}});
  return y;
}

}  // namespace

TEST_CASE("dropout", "[layer]") {
  check_layer({.kind = "dropout", .config = {{"p", 0.3}}, .inputs = {{.width = 10}}});
  check_layer({.kind = "dropout", .config = {{"p", 0}}, .inputs = {{.width = 10}}});
  check_layer(
      {.kind = "dropout", .config = {{"p", 0.3}}, .inputs = {{.width = 10}, {.width = 10}}});
  check_layer({.kind = "dropout",
               .config = {{"p", 0}},
               .inputs = {{.width = 10}, {.width = 10}},
               .formula = [](const LayerValues& v) {
                 std::vector<double> y = v.inputs[0];
                 for (std::size_t i = 0; i < y.size(); ++i) y[i] += v.inputs[1][i];
                 return y;
               }});
}

TEST_CASE("dropout zeroes a share p, scales the rest, and changes with the step", "[layer]") {
  const std::vector<double> y = dropout_of_ones(0.25, true, 0);
  std::size_t zeros = 0, scaled = 0;
  for (const double value : y) {
    zeros += value == 0;
    scaled += std::abs(value - 4.0 / 3) < 1e-12;
  }
  CHECK(zeros + scaled == y.size());
  // 16,384 draws: standard deviation 55.
  CHECK(std::abs(static_cast<double>(zeros) - 4096) < 5 * 55);
  CHECK(dropout_of_ones(0.25, true, 0) == y);
  CHECK(dropout_of_ones(0.25, true, 1) != y);
}

TEST_CASE("dropout copies outside training", "[layer]") {
  CHECK(dropout_of_ones(0.25, false, 0) == std::vector<double>(4096 * 4, 1));
}
