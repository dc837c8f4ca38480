#include <algorithm>
#include <cmath>

#include "optim/methods/variance_probe.h"
#include "tests/support/check_sampling.h"
#include "tests/support/check_slope.h"
#include "tests/support/watched_ops.h"

using namespace vcas;

namespace {

ModelOptions tiny_vit(const std::string& pooling = "first", double dropout = 0, int patch = 4) {
  return read_model_options({"type=vit", "width=16", "depth=3", "heads=2", "ffn_ratio=2",
                             "pooling=" + pooling, "patch=" + std::to_string(patch),
                             "dropout=" + std::to_string(dropout),
                             "attention_dropout=" + std::to_string(dropout)});
}

const std::vector<std::int64_t> kImage = {1, 8, 8};

}  // namespace

TEST_CASE("the gradient of a ViT is the slope of its loss", "[model]") {
  const std::string pooling = GENERATE("first", "mean");
  const double dropout = GENERATE(0.0, 0.2);
  const ModelOptions options = tiny_vit(pooling, dropout);
  ModelFixture f(options, kImage, 3, 4, DType::kF64);
  check_slope(f, 1e-8);
}

TEST_CASE("the branches of a ViT start smaller the more of them add up", "[model]") {
  ModelFixture f(tiny_vit(), kImage, 3, 1);
  int branches = 0;
  for (const Parameter& parameter : f.model->graph.parameters().list()) {
    if (!parameter.name.starts_with("vit.encoder.") || parameter.shape.rank() != 2) continue;
    INFO(parameter.name);
    const bool branch = parameter.name.ends_with("output.dense.weight");
    branches += branch;
    const auto inputs = static_cast<double>(parameter.shape[1]);
    CHECK_THAT(parameter.init.value, WithinRel(1 / std::sqrt(branch ? 6 * inputs : inputs), 1e-12));
  }
  CHECK(branches == 6);
}

TEST_CASE("ratios of one give the exact gradient bit for bit", "[model][law]") {
  ModelFixture f(tiny_vit(), kImage, 3, 8);
  check_ratios_of_one(f);
}

// A draw of all rows weighs each row 1. Only the time of the weight gradients differs.
// They wait for others while backward goes on.
// Without dropout a residual's gradient and that of a linear map share memory.
TEST_CASE("sampled weight gradients over all rows are the exact ones", "[model][law]") {
  const double dropout = GENERATE(0.0, 0.2);
  const ModelOptions options = tiny_vit("first", dropout);
  ModelFixture f(options, kImage, 3, 8, DType::kF64);
  Exec exec = f.forward();
  for (const double ratio : {1.0, 0.5}) {
    const auto exact = f.gradient(exec, f.context(SamplingMode::kItems, ratio, 1));
    const auto drawn =
        f.gradient(exec, f.context(SamplingMode::kItemsAndRows, ratio, std::nextafter(1, 0)));
    REQUIRE(drawn != exact);  // sums of another order
    for (std::size_t i = 0; i < exact.size(); ++i) CHECK(std::abs(drawn[i] - exact[i]) < 1e-14);
  }
}

TEST_CASE("the mean of many sampled gradients is the exact one", "[model][law]") {
  const Selection selection = GENERATE(Selection::kBernoulli, Selection::kSystematic);
  // 1 item of 8; a fraction; nested draws; a gate above that passes everything on.
  const std::vector<double> act_ratio =
      GENERATE(std::vector<double>{0.125, 0.125, 0.125}, std::vector<double>{0.55, 0.55, 0.55},
               std::vector<double>{0.3, 0.6, 0.8}, std::vector<double>{0.25, 0.6, 1.0});
  const std::string pooling = GENERATE("first", "mean");
  ModelFixture f(tiny_vit(pooling), kImage, 3, 8);
  PassSettings context = f.context(SamplingMode::kItemsAndRows, 1, 0.3, selection);
  context.sampling.ratios.act = act_ratio;
  check_mean(f, context, "vit.encoder.layer.0.");
}

TEST_CASE("the mean is exact where thresholds decide how many items are kept", "[model][law]") {
  const Selection selection = GENERATE(Selection::kBernoulli, Selection::kSystematic);
  ModelFixture f(tiny_vit("mean"), kImage, 3, 8);
  PassSettings context = f.context(SamplingMode::kItemsAndRows, 0.55, 0.3, selection);
  context.sampling.ratios.act = {0.3, 0.6, 0.8};
  f.sampled->thresholds.resize(3);
  check_mean(f, context, "vit.encoder.layer.0.");
  for (const ItemThreshold& threshold : f.sampled->thresholds) CHECK(threshold.value() > 0);
}

TEST_CASE("the mean notices rows that are kept and not scaled by 1/p", "[model][law]") {
  const Stream spoilt = GENERATE(Stream::kGate, Stream::kWeight);
  const bool gate = spoilt == Stream::kGate;
  const auto forget = [](const Tensor& scale) {
    std::fill_n(scale.ptr<float>(), scale.elements(), 1.0f);
  };
  ModelFixture f(tiny_vit(), kImage, 3, 8, DType::kF32,
                 watched_ops(
                     [&](const Draw& args, const std::string&) {
                       if (args.key.stream == spoilt) forget(args.scale);
                     },
                     [&](const NarrowRows& args, const std::string&) {
                       if (gate) forget(args.row_scale);
                     }));
  const PassSettings context = f.context(SamplingMode::kItemsAndRows, gate ? 0.55 : 1,
                                         gate ? 1 : 0.3, Selection::kSystematic);
  const auto errors = mean_errors(f, context, 4096);
  const auto wrong = std::count_if(errors.begin(), errors.end(), [](const TensorError& error) {
    return error.name.starts_with("vit.encoder.layer.0.") && error.name.ends_with(".weight") &&
           !error.name.starts_with("vit.encoder.layer.0.layernorm") && !within_five(error);
  });
  INFO(wrong << " directions of wrong mean");
  CHECK(wrong >= 4);  // each linear of the lowest block, at least along its own gradient
}

TEST_CASE("the variance that one gate adds is that of independent items", "[model][law]") {
  constexpr std::int64_t kItems = 8;
  constexpr double kRatio = 0.4;
  ModelFixture f(tiny_vit("mean"), kImage, 3, kItems, DType::kF64);
  Graph& graph = f.model->graph;
  PassSettings context = f.context(SamplingMode::kExact, 1, 1);
  std::vector<double> norm(kItems), others(kItems);
  const Tensor unread{others.data(), DType::kF64, {kItems}};
  ExactLook look;
  look.item_score = {{norm.data(), DType::kF64, {kItems}}, unread, unread};
  context.hooks = &look;
  Exec exec = f.exec();
  graph.forward(exec);
  const auto exact = f.gradient(exec, context);
  context.hooks = nullptr;

  // p = min(1, c norm) with c found by halving.
  double low = 0, high = 1e12;
  for (int halving = 0; halving < 200; ++halving) {
    const double c = (low + high) / 2;
    double sum = 0;
    for (const double x : norm) sum += std::min(1.0, c * x);
    (sum < kRatio * kItems ? low : high) = c;
  }

  constexpr int kDraws = 4096;
  context.mode = SamplingMode::kItems;
  context.sampling.ratios.act = {kRatio, 1, 1};  // the lowest gate alone
  double mean = 0, squares = 0;
  for (int draw = 0; draw < kDraws; ++draw) {
    Exec at = f.exec(static_cast<std::uint64_t>(draw));
    const auto sampled = f.gradient(at, context);
    double distance = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) distance += std::pow(sampled[i] - exact[i], 2);
    mean += distance / kDraws;
    squares += distance * distance / kDraws;
  }

  // Sum over the items of (1 - p) / p ||g_i||^2, g_i what the item alone adds to the gradients
  // below the gate.
  context = f.context(SamplingMode::kExact, 1, 1);  // keeps 1 / kItems as the scale of a loss
  const Tensor input = f.input("values"), labels = f.input("labels");
  const std::vector<float> inputs(input.ptr<float>(), input.ptr<float>() + input.elements());
  const std::vector<std::int32_t> classes(labels.ptr<std::int32_t>(),
                                          labels.ptr<std::int32_t>() + kItems);
  double want = 0;
  for (std::int64_t item = 0; item < kItems; ++item) {
    graph.set_batch(1, {});
    std::copy_n(inputs.begin() + item * input.width(), input.width(), input.ptr<float>());
    labels.ptr<std::int32_t>()[0] = classes[static_cast<std::size_t>(item)];
    graph.forward(exec);
    const auto alone = f.gradient(exec, context);
    const double p = std::min(1.0, low * norm[static_cast<std::size_t>(item)]);
    for (const Parameter& parameter : graph.parameters().list()) {
      if (!parameter.name.starts_with("vit.embeddings") &&
          !parameter.name.starts_with("vit.encoder.layer.0."))
        continue;
      const auto [begin, end] = f.range(parameter);
      for (std::size_t i = begin; i < end; ++i) want += (1 - p) / p * alone[i] * alone[i];
    }
  }
  const double error = std::sqrt((squares - mean * mean) / kDraws);
  INFO(mean << " +- " << error << ", wanted " << want);
  CHECK(error < 0.05 * want);
  CHECK(std::abs(mean - want) <= 5 * error);
}

TEST_CASE("a draw that keeps nothing leaves everything below at zero", "[model][law]") {
  ModelFixture f(tiny_vit(), kImage, 3, 8);
  Exec exec = f.forward();
  PassSettings context = f.context(SamplingMode::kItemsAndRows, 1e-6, 1);
  context.adds_gradients = GENERATE(true, false);
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

TEST_CASE("a backward that replaces gradients gives the bits of one that adds to zeros",
          "[model]") {
  ModelFixture f(tiny_vit(), kImage, 3, 8);
  Exec exec = f.forward();
  for (const auto& [mode, selection] : {std::pair{SamplingMode::kExact, Selection::kSystematic},
                                        {SamplingMode::kItemsAndRows, Selection::kSystematic},
                                        {SamplingMode::kItemsAndRows, Selection::kBernoulli}}) {
    PassSettings context = f.context(mode, 0.5, 0.3, selection);
    const auto added = f.gradient(exec, context);
    context.adds_gradients = false;
    CHECK(f.gradient(exec, context) == added);
  }
}

TEST_CASE("repeats differ in sampling and agree in dropout", "[model][law]") {
  const ModelOptions options = tiny_vit("first", 0.3);
  ModelFixture f(options, kImage, 3, 8);
  Exec exec = f.forward();
  PassSettings context = f.context(SamplingMode::kItems, 0.5, 1);
  const auto first = f.gradient(exec, context);
  CHECK(f.gradient(exec, context) == first);
  context.sampling.repeat = 1;
  CHECK(f.gradient(exec, context) != first);
  context.mode = SamplingMode::kExact;
  const auto exact = f.gradient(exec, context);
  context.sampling.repeat = 2;
  CHECK(f.gradient(exec, context) == exact);
}

TEST_CASE("a model that does not fit is refused", "[model]") {
  const ModelOptions options = tiny_vit("first", 0, 3);
  const auto build = [&](const std::vector<std::int64_t>& shape) {
    auto ops = make_ops("cpu");
    build_model(options, shape, 3, 0.0)->graph.finish(*ops, {.max_items = 2});
  };
  CHECK_THROWS_WITH(build(kImage),
                    ContainsSubstring("patch") && ContainsSubstring("3") && ContainsSubstring("8"));
  CHECK_THROWS_WITH(build({64}), ContainsSubstring("needs images"));
  CHECK_THROWS_WITH(read_model_options({"type=vit", "width=8", "heads=2", "ffn_ratio=0.05"}),
                    ContainsSubstring("ffn_ratio must leave feed-forwards a width of at "
                                      "least 1, got 0.05 of model.width 8"));
}
