#include "optim/methods/sampled_backward.h"
#include "tests/support/check_layer.h"

using namespace vcas;

namespace {

// y = x W^T + b with C = 8 and D = 6.
std::vector<double> product(const LayerValues& v, bool bias) {
  std::vector<double> y;
  for (std::int64_t r = 0; r < v.offsets.back(); ++r)
    for (std::size_t d = 0; d < 6; ++d) {
      double sum = bias ? v.parameters[1][d] : 0;
      for (std::size_t c = 0; c < 8; ++c)
        sum += v.inputs[0][static_cast<std::size_t>(r) * 8 + c] * v.parameters[0][d * 8 + c];
      y.push_back(sum);
    }
  return y;
}

}  // namespace

TEST_CASE("linear", "[layer]") {
  check_layer({.kind = "linear",
               .config = {{"width", 6}},
               .inputs = {{.width = 8}},
               .formula = [](const LayerValues& v) { return product(v, true); }});
}

TEST_CASE("linear without bias, weight never sampled", "[layer]") {
  check_layer({.kind = "linear",
               .config = {{"width", 6}, {"bias", false}, {"sampled", false}},
               .inputs = {{.width = 8}},
               .formula = [](const LayerValues& v) { return product(v, false); }});
}

TEST_CASE("sampling the weight gradient leaves dx and the bias gradient alone", "[layer]") {
  constexpr std::int64_t kRows = 20, kIn = 8, kOut = 6;
  const auto ops = make_ops("cpu");
  const auto layer = make_layer("linear", {{"width", kOut}});
  const std::vector<ValueSpec> specs{{kIn, Layout::items(1), DType::kF64}};
  const NodePlan plan = layer->plan({specs, DType::kF64, kRows, 0});
  REQUIRE(plan.samples_weight);

  const PhiloxAddress address = philox_address({.seed = 2});
  std::vector<double> x(kRows * kIn), weight(kOut * kIn), bias(kOut), dy(kRows * kOut);
  for (auto* values : {&x, &weight, &dy})
    for (std::size_t i = 0; i < values->size(); ++i) (*values)[i] = philox_normal(address, i);
  RowSets rows;
  rows.entries().push_back({Layout::items(1), {.items = kRows, .rows = kRows}});

  struct Gradients {
    std::vector<double> dx = std::vector<double>(kRows * kIn);
    std::vector<double> dweight = std::vector<double>(kOut * kIn);
    std::vector<double> dbias = std::vector<double>(kOut);
  };
  const auto backward = [&](BackwardHooks& hooks) {
    Gradients out;
    const std::vector<Tensor> inputs{{x.data(), DType::kF64, {kRows, kIn}}};
    const std::vector<Tensor> parameters{{weight.data(), DType::kF64, {kOut, kIn}},
                                         {bias.data(), DType::kF64, {kOut}}};
    const std::vector<Tensor> dx{{out.dx.data(), DType::kF64, {kRows, kIn}}};
    const std::vector<Tensor> added(1);
    const std::vector<Tensor> gradients{{out.dweight.data(), DType::kF64, {kOut, kIn}},
                                        {out.dbias.data(), DType::kF64, {kOut}}};
    std::vector<char> scratch(BackwardHooks::scratch_bytes(kRows) + Arena::kAlignment);
    Arena arena(scratch.data(), scratch.size());
    Exec exec{.ops = *ops, .scratch = arena, .scratch_beside = arena, .dtype = DType::kF64};
    layer->backward(exec, {.inputs_full = inputs,
                           .parameters = parameters,
                           .input_specs = specs,
                           .dy = {dy.data(), DType::kF64, {kRows, kOut}},
                           .dx = dx,
                           .added = added,
                           .rows = rows,
                           .rows_dx = rows,
                           .rows_full = rows,
                           .gradients = {gradients},
                           .method = {.hooks = hooks, .site = 0}});
    hooks.flush(exec);
    return out;
  };
  BackwardHooks exact_hooks;
  SampledBackward sampled_hooks(*ops, {});
  sampled_hooks.pass.ratios.weight = {0.3};
  const Gradients exact = backward(exact_hooks);
  const Gradients sampled = backward(sampled_hooks);
  CHECK(sampled.dx == exact.dx);
  CHECK(sampled.dbias == exact.dbias);
  CHECK(sampled.dweight != exact.dweight);
}
