// Norms of rows that are kept for sampled weight gradients, in whole models.
#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/model_fixture.h"
#include "tests/support/reference/tensors.h"
#include "tests/support/watched_ops.h"

using namespace vcas;

namespace {

// What all row scores of a pass were given.
struct Given {
  int scores = 0, dy_norms = 0, x_norms = 0, wrong = 0;
};

// Whether each is the norm of its row as it is now.
bool are_norms_of(const Tensor& norm, const Tensor& rows) {
  for (std::int64_t r = 0; r < rows.rows(); ++r) {
    const double want = reference::norm_of_row(rows, r), got = reference::norm_of_row(norm, r);
    if (!(std::abs(got - want) <= 1e-14 * (1e-300 + want))) return false;
  }
  return norm.rows() == rows.rows();
}

ModelOptions tiny(const std::string& type, double dropout) {
  std::vector<std::string> settings = {"type=" + type,
                                       "width=16",
                                       "depth=3",
                                       "heads=2",
                                       "ffn_ratio=2",
                                       "pooling=mean",
                                       "dropout=" + std::to_string(dropout)};
  if (type == "vit")
    settings.push_back("patch=4");
  else
    settings.insert(settings.end(), {"max_positions=8", "vocabulary=11"});
  return read_model_options(settings);
}

}  // namespace

TEST_CASE("norms are kept by the layers that write rows, and change no gradient", "[model][law]") {
  const std::string type = GENERATE("vit", "bert");
  const double dropout = GENERATE(0.0, 0.2);
  Given given;
  ModelFixture f(tiny(type, dropout), {1, 8, 8}, 3, 6, DType::kF64,
                 watched_ops([&](const RowScore& args, const std::string&) {
                   ++given.scores;
                   given.dy_norms += bool(args.dy_norm);
                   given.x_norms += bool(args.x_norm_full);
                   given.wrong += args.dy_norm && !are_norms_of(args.dy_norm, args.dy);
                   given.wrong += args.x_norm_full && !are_norms_of(args.x_norm_full, args.x_full);
                 }));
  for (const std::vector<double>& ratios :
       {std::vector{0.5, 0.5, 1.0}, {0.3, 0.6, 0.8}, {1., 1., 1.}}) {
    PassSettings context = f.context(SamplingMode::kItemsAndRows, 1, 0.4);
    context.sampling.ratios.act = ratios;
    Exec exec = f.exec();
    given = {};
    f.model->graph.forward(exec);
    const auto without = f.gradient(exec, context);
    CHECK(given.scores == 12);
    CHECK(given.dy_norms == 0);
    CHECK(given.x_norms == 0);

    given = {};
    exec.keeps_norms = true;
    f.model->graph.forward(exec);
    const auto with = f.gradient(exec, context);
    CHECK(given.scores == 12);
    CHECK(given.wrong == 0);
    // Attention gives those of parts, so that what they add up to is rounded otherwise.
    REQUIRE(with.size() == without.size());
    for (std::size_t i = 0; i < with.size(); ++i)
      CHECK(std::abs(with[i] - without[i]) <= 1e-13 * (1 + std::abs(without[i])));
    CHECK(given.x_norms == 12);
    CHECK(given.dy_norms == 12);
  }
}

TEST_CASE("no norms are written for hooks that read none", "[model]") {
  struct Look final : BackwardHooks {
    int uses = 0, norms = 0;
    void weight_gradient(Exec& exec, const WeightUse& use) override {
      ++uses;
      norms += bool(use.dy_norm);
      BackwardHooks::weight_gradient(exec, use);
    }
  } look;
  ModelFixture f(tiny("vit", 0), {1, 8, 8}, 3, 6, DType::kF64);
  Exec exec = f.exec();
  exec.keeps_norms = true;
  f.model->graph.forward(exec);
  f.gradient(exec, {.hooks = &look});
  CHECK(look.uses > 12);
  CHECK(look.norms == 0);
}

TEST_CASE("norms of a gradient that another layer adds to are not used", "[model][law]") {
  Given given;
  const std::unique_ptr<Ops> ops = watched_ops([&](const RowScore& args, const std::string&) {
    ++given.scores;
    given.dy_norms += bool(args.dy_norm);
    given.wrong += args.dy_norm && !are_norms_of(args.dy_norm, args.dy);
  });
  Graph graph(DType::kF64);
  const Value x = graph.input("x", {4, Layout::items(1), DType::kF64});
  const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
  const auto linear = [&](const std::string& name, Value from) {
    return graph.add(name, make_layer("linear", {{"width", 4}}), {from});
  };
  // Backward: the norm writes the gradient of the first linear, the second one adds to it.
  const Value first = linear("first", x), second = linear("second", first);
  const Value norm = graph.add("norm", make_layer("layer_norm"), {first});
  const Value sum = graph.add("sum", make_layer("add"), {second, norm});
  graph.add("loss", make_layer("softmax_cross_entropy"), {sum, labels});
  graph.finish(*ops, {.max_items = 5});
  graph.parameters().initialize(*ops, 1);
  graph.set_batch(5, {});
  for (std::int64_t i = 0; i < 20; ++i)
    graph.tensor(x).ptr<double>()[i] = philox_normal(philox_address({}), std::uint64_t(i));
  const std::vector<Tensor> gradients = graph.parameters().gradient_list();
  SampledBackward sampled(*ops, graph.plan());
  sampled.pass.ratios.weight = {0.5, 0.5};
  Exec exec = graph.make_exec(1, 0, true);
  exec.keeps_norms = true;
  graph.forward(exec);
  graph.backward(exec, {.gradients = {gradients}, .hooks = &sampled});
  CHECK(given.scores == 2);
  CHECK(given.dy_norms == 0);
  CHECK(given.wrong == 0);
}
