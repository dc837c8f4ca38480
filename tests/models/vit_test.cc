#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/model_fixture.h"

using namespace vcas;

namespace {

ModelOptions tiny_vit(const std::string& pooling = "first") {
  ModelOptions options;
  options.width = 16;
  options.depth = 3;
  options.heads = 2;
  options.patch = 4;
  options.ffn_ratio = 2;
  options.pooling = pooling;
  return options;
}

const std::vector<std::int64_t> kImage = {1, 8, 8};

}  // namespace

TEST_CASE("the gradient of a ViT is the slope of its loss", "[model]") {
  const std::string pooling = GENERATE("first", "mean");
  ModelOptions options = tiny_vit(pooling);
  options.dropout = GENERATE(0.0, 0.2);
  options.attention_dropout = options.dropout;
  ModelFixture f(options, kImage, 3, 4, DType::kF64);
  Exec exec = f.exec();
  f.mean_loss(exec);
  const std::vector<double> gradient = f.gradient(exec, f.context(SamplingMode::kExact, 1, 1));
  const Parameters& parameters = f.model->graph.parameters();
  for (const Parameter& parameter : parameters.list()) {
    const auto [begin, end] = f.range(parameter);
    for (std::size_t i = begin; i < end; i += 1 + (end - begin) / 5) {
      double& value = parameters.values().ptr<double>()[i];
      const double old = value, h = 1e-5;
      value = old + h;
      const double above = f.mean_loss(exec);
      value = old - h;
      const double below = f.mean_loss(exec);
      value = old;
      INFO(parameter.name << " element " << i - begin);
      CHECK(std::abs((above - below) / (2 * h) - gradient[i]) <=
            1e-8 + 1e-6 * std::abs(gradient[i]));
    }
  }
}

TEST_CASE("ratios of one give the exact gradient bit for bit", "[model][law]") {
  ModelFixture f(tiny_vit(), kImage, 3, 8);
  Exec exec = f.exec();
  f.model->graph.forward(exec);
  const auto exact = f.gradient(exec, f.context(SamplingMode::kExact, 1, 1));
  CHECK(f.gradient(exec, f.context(SamplingMode::kItemsAndRows, 1, 1)) == exact);
  CHECK(f.gradient(exec, f.context(SamplingMode::kExact, 1, 1)) == exact);
}

TEST_CASE("the mean of many sampled gradients is the exact one", "[model][law]") {
  const Selection selection = GENERATE(Selection::kBernoulli, Selection::kSystematic);
  // 1 item of 8; a fraction; nested draws; a gate above that passes everything on.
  const std::vector<double> act_ratio =
      GENERATE(std::vector<double>{0.125, 0.125, 0.125}, std::vector<double>{0.55, 0.55, 0.55},
               std::vector<double>{0.3, 0.6, 0.8}, std::vector<double>{0.25, 0.6, 1.0});
  const std::string pooling = GENERATE("first", "mean");
  ModelFixture f(tiny_vit(pooling), kImage, 3, 8);
  Exec exec = f.exec();
  f.model->graph.forward(exec);
  const auto exact = f.gradient(exec, f.context(SamplingMode::kExact, 1, 1));
  BackwardContext context = f.context(SamplingMode::kItemsAndRows, 1, 0.3, selection);
  context.act_ratio = act_ratio;

  // Each tensor's error is looked at along its exact gradient, where a wrong scale shows, and along
  // two random directions.
  constexpr int kDraws = 4096, kDirections = 3;
  const auto& list = f.model->graph.parameters().list();
  std::vector<double> direction(exact.size() * kDirections);
  const PhiloxAddress address = philox_address({1, Stream::kData, 1, 0, 0});
  for (std::size_t i = 0; i < exact.size(); ++i) {
    direction[i * kDirections] = exact[i];
    for (std::size_t d = 1; d < kDirections; ++d)
      direction[i * kDirections + d] = philox_uniform(address, i * kDirections + d) < 0.5f ? -1 : 1;
  }
  std::vector<double> sum(list.size() * kDirections), squares(sum.size());
  for (int draw = 0; draw < kDraws; ++draw) {
    Exec at = f.exec(static_cast<std::uint64_t>(draw));
    const auto sampled = f.gradient(at, context);
    for (std::size_t p = 0; p < list.size(); ++p) {
      const auto [begin, end] = f.range(list[p]);
      for (std::size_t d = 0; d < kDirections; ++d) {
        double dot = 0;
        for (std::size_t i = begin; i < end; ++i)
          dot += (sampled[i] - exact[i]) * direction[i * kDirections + d];
        sum[p * kDirections + d] += dot;
        squares[p * kDirections + d] += dot * dot;
      }
    }
  }
  for (std::size_t p = 0; p < list.size(); ++p)
    for (std::size_t d = 0; d < kDirections; ++d) {
      const double mean = sum[p * kDirections + d] / kDraws;
      const double variance = squares[p * kDirections + d] / kDraws - mean * mean;
      INFO(list[p].name << " direction " << d << ": " << mean << " of standard error "
                        << std::sqrt(variance / kDraws));
      CHECK(std::abs(mean) <= 5 * std::sqrt(variance / kDraws) + 1e-9);
      if (list[p].name.starts_with("vit.encoder.layer.0.")) CHECK(variance > 0);
    }
}

TEST_CASE("a draw that keeps nothing leaves everything below at zero", "[model][law]") {
  ModelFixture f(tiny_vit(), kImage, 3, 8);
  Exec exec = f.exec();
  f.model->graph.forward(exec);
  const BackwardContext context = f.context(SamplingMode::kItemsAndRows, 1e-6, 1);
  const auto sampled = f.gradient(exec, context);
  const auto exact = f.gradient(exec, f.context(SamplingMode::kExact, 1, 1));
  for (const Parameter& parameter : f.model->graph.parameters().list()) {
    const auto [begin, end] = f.range(parameter);
    const bool above =
        parameter.name.starts_with("classifier") || parameter.name.starts_with("vit.layernorm");
    INFO(parameter.name);
    for (std::size_t i = begin; i < end; ++i) CHECK(sampled[i] == (above ? exact[i] : 0.0));
  }
}

TEST_CASE("repeats differ in sampling and agree in dropout", "[model][law]") {
  ModelOptions options = tiny_vit();
  options.dropout = 0.3;
  ModelFixture f(options, kImage, 3, 8);
  Exec exec = f.exec();
  f.model->graph.forward(exec);
  BackwardContext context = f.context(SamplingMode::kItems, 0.5, 1);
  const auto first = f.gradient(exec, context);
  CHECK(f.gradient(exec, context) == first);
  context.repeat = 1;
  CHECK(f.gradient(exec, context) != first);
  context.mode = SamplingMode::kExact;
  const auto exact = f.gradient(exec, context);
  context.repeat = 2;
  CHECK(f.gradient(exec, context) == exact);
}

TEST_CASE("a model that does not fit is refused", "[model]") {
  ModelOptions options = tiny_vit();
  options.patch = 3;
  const auto build = [&](const std::vector<std::int64_t>& shape) {
    auto ops = make_ops("cpu");
    build_model(options, shape, 3, 0.0)->graph.finish(*ops, {.max_items = 2});
  };
  CHECK_THROWS_WITH(build(kImage),
                    ContainsSubstring("patch") && ContainsSubstring("3") && ContainsSubstring("8"));
  CHECK_THROWS_WITH(build({64}), ContainsSubstring("needs images"));
}
