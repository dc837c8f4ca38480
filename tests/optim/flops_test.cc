#include "optim/flops.h"

#include "core/error.h"
#include "models/blocks.h"
#include "tests/optim/trainer_fixture.h"
#include "tests/support/catch.h"

using namespace vcas;

TEST_CASE("keeping a third of every batch saves 44.44 %", "[flops]") {
  FormulaFlops flops({{0, 1}, {0, 1}, {1, 1}});
  for (int i = 0; i < 10; ++i) flops.add_sampled_step({1.0 / 3, 1.0 / 3}, {1, 1, 1});
  CHECK_THAT(flops.saved(), WithinAbs(0.4444, 5e-5));
  CHECK_THAT(flops.backward_saved(), WithinAbs(2.0 / 3, 1e-12));
}

TEST_CASE("exact steps and ratios of 1 save nothing", "[flops]") {
  FormulaFlops flops({{0, 3}, {1, 7}});
  CHECK(flops.saved() == 0);
  CHECK(flops.backward_saved() == 0);
  flops.add_exact_step();
  flops.add_sampled_step({1, 1}, {1, 1});
  CHECK_THAT(flops.saved(), WithinAbs(0, 1e-15));
  CHECK_THAT(flops.backward_saved(), WithinAbs(0, 1e-15));
}

TEST_CASE("where no linear is sampled, nothing is saved by the formula", "[flops]") {
  FormulaFlops flops({});
  flops.add_sampled_step({0.5}, {});
  CHECK(flops.saved() == 0);
  CHECK(flops.backward_saved() == 0);
  flops.add_separate_probe(1, 1, 1, {0.5});
  CHECK(flops.backward_saved() == -2);
}

TEST_CASE("an exact step of half the items saves half", "[flops]") {
  FormulaFlops flops({{0, 1}});
  flops.add_exact_step(0.5);
  CHECK(flops.saved() == 0.5);
  CHECK(flops.backward_saved() == 0.5);
}

TEST_CASE("an interval with a separate probe costs what the paper's formula says", "[flops]") {
  const std::vector<double> rho = {0.2, 0.6}, nu = {0.5, 0.25, 1, 0.75};
  const int f = 100, m = 2;
  FormulaFlops flops({{0, 1}, {0, 1}, {1, 1}, {1, 1}});
  flops.add_separate_probe(m, m, 1, rho);
  for (int i = 0; i < f; ++i) flops.add_sampled_step(rho, nu);
  const double mean_rho = (0.2 + 0.2 + 0.6 + 0.6) / 4;
  const double mean_rho_nu = (0.2 * 0.5 + 0.2 * 0.25 + 0.6 * 1 + 0.6 * 0.75) / 4;
  const double cost =
      (f * (1 + mean_rho + mean_rho_nu) + 3 * m + m * m * (1 + 2 * mean_rho)) / (3 * f);
  CHECK_THAT(flops.saved(), WithinAbs(1 - cost, 1e-12));
  const double backward = (f * (mean_rho + mean_rho_nu) + 2 * m + m * m * 2 * mean_rho) / (2 * f);
  CHECK_THAT(flops.backward_saved(), WithinAbs(1 - backward, 1e-12));
}

TEST_CASE("a probe in place adds its sampled passes and a share of dW", "[flops]") {
  FormulaFlops flops({{0, 1}, {1, 3}});
  const std::vector<double> rho = {0.4, 0.8};  // mean 0.7 by size
  flops.add_exact_step();
  flops.add_exact_step();
  flops.add_in_place_probe(2, 2, 1, {0.04, 0.01}, rho);
  for (int i = 0; i < 8; ++i) flops.add_sampled_step(rho, {0.5, 0.5});
  const double looks = 0.25 * 0.04 + 0.75 * 0.01;
  const double sampled = 0.25 * 0.4 * 1.04 + 0.75 * 0.8 * 1.01;
  const double cost = 2 * 3 + (2 * looks + 4 * sampled) + 8 * (1 + 0.7 + 0.35);
  CHECK_THAT(flops.saved(), WithinAbs(1 - cost / 30, 1e-12));
}

TEST_CASE("a probe of one micro-batch costs its share of a batch", "[flops]") {
  const std::vector<double> rho = {0.4, 0.8};
  const bool in_place = GENERATE(true, false);
  const auto cost_of = [&](double batch_share) {
    FormulaFlops flops({{0, 1}, {1, 3}});
    flops.add_exact_step();
    if (in_place)
      flops.add_in_place_probe(2, 2, batch_share, {0.04, 0.01}, rho);
    else
      flops.add_separate_probe(2, 2, batch_share, rho);
    return -flops.saved();  // beyond the step
  };
  CHECK(cost_of(1) > 0);
  CHECK_THAT(cost_of(0.25), WithinAbs(cost_of(1) / 4, 1e-12));
}

namespace {

constexpr std::int64_t kItems = 16, kInput = 8;

// Linear layers with a gate after each, and nothing else that has FLOPs. The norm below them wants
// the dX of the first.
std::unique_ptr<Model> linear_network() {
  auto model = std::make_unique<Model>(DType::kF32);
  Graph& graph = model->graph;
  const Value input = add_values(*model, {kInput}, DType::kF32);
  const Value labels = add_labels(*model, 4);
  Value x = graph.add("norm", make_layer("layer_norm"), {input});
  for (const int width : {24, 40, 4}) {
    const std::string name = "linear." + std::to_string(width);
    x = graph.add(name, make_layer("linear", {{"width", width}}), {x});
    graph.gate(x);
  }
  model->logits = x;
  add_cross_entropy(*model, labels, 0);
  return model;
}

struct Counted {
  CountOps ops{make_ops("cpu")};
  std::unique_ptr<Model> model = linear_network();
  std::unique_ptr<Trainer> trainer;
  RandomBatches source{kItems, 0, {}, kInput};
  std::vector<FormulaFlops::Linear> linears;

  explicit Counted(TrainerOptions options) {
    options.batch = kItems;
    Graph& graph = model->graph;
    graph.finish(ops, {.max_items = kItems});
    graph.parameters().initialize(ops, 1);
    trainer = std::make_unique<Trainer>(*model, ops, options, nullptr);
    for (std::size_t k = 0; k < graph.sampled_weights().size(); ++k) {
      const auto weight = static_cast<std::size_t>(graph.sampled_weights()[k]);
      linears.push_back({graph.gate_above(static_cast<int>(k)),
                         static_cast<double>(graph.parameters()[weight].shape.elements())});
    }
  }

  void steps(int count) {
    for (int i = 0; i < count; ++i) trainer->step(source.next());
  }
  double backward() const { return ops.flops(Phase::kBackward) + ops.flops(Phase::kProbe); }
  double all() const { return ops.flops(Phase::kForward) + backward(); }
};

const std::vector<double> kActRatio = {0.25, 0.5, 1}, kWeightRatio = {0.5, 0.5, 0.25};

}  // namespace

TEST_CASE("counted and formula FLOPs agree on linear layers alone", "[flops][law]") {
  TrainerOptions options = TrainerFixture::defaults();
  options.micro_batch = GENERATE(0, 8);  // budgets are whole in both
  options.method.type = "exact";
  Counted exact(options);
  options.method.type = "vcas";

  SECTION("of sampled steps") {
    vcas_of(options).act_ratio = kActRatio;
    vcas_of(options).weight_ratio = kWeightRatio;
    Counted sampled(options);
    FormulaFlops formula(sampled.linears);
    exact.steps(5);
    sampled.steps(5);
    for (int i = 0; i < 5; ++i) formula.add_sampled_step(kActRatio, kWeightRatio);
    CHECK_THAT(formula.saved(), WithinAbs(1 - sampled.all() / exact.all(), 1e-12));
    CHECK_THAT(formula.backward_saved(),
               WithinAbs(1 - sampled.backward() / exact.backward(), 1e-12));
    CHECK(formula.saved() > 0.3);
  }
  SECTION("of a probe in place") {
    vcas_of(options).update_every = 100;
    Counted probed(options);
    const std::vector<double> ones(3, 1.0);
    const auto [act_ratio, weight_ratio, passes] =
        GENERATE_COPY(std::tuple(kActRatio, kWeightRatio, 2), std::tuple(ones, kWeightRatio, 1),
                      std::tuple(ones, ones, 0));
    probed.trainer->restore(
        {{"step", 0},
         {"optimizer_steps", 0},
         {"vcas",
          {{"s", 0.5}, {"act_ratio", act_ratio}, {"weight_ratio", weight_ratio}, {"probes", 0}}}});
    FormulaFlops formula(probed.linears);
    exact.steps(2);
    probed.steps(2);
    REQUIRE(vcas_of(*probed.trainer).controller().probes() == 1);
    CHECK(vcas_of(*probed.trainer).probe_passes() == passes);
    for (int i = 0; i < 2; ++i) formula.add_exact_step();
    formula.add_in_place_probe(2, passes, options.micro_batch == 0 ? 1 : 0.5,
                               vcas_of(*probed.trainer).sketch_shares(), act_ratio);
    FormulaFlops own(probed.linears);  // as the method counts
    own.add_exact_step();
    probed.trainer->method().add_cost(own);
    CHECK_THAT(own.saved(), WithinAbs(formula.saved(), 1e-12));
    // The formula leaves out what compares the sketches of items.
    const double items = options.micro_batch == 0 ? kItems : 8;
    double grams = 0;
    for (std::size_t k = 0; k < probed.linears.size(); ++k)
      grams += 2 * items * (items + 1) * vcas_of(*probed.trainer).sketch_shares()[k] *
               probed.linears[k].size;
    CHECK_THAT(formula.saved(), WithinAbs(1 - (probed.all() - grams) / exact.all(), 1e-12));
    CHECK_THAT(formula.backward_saved(),
               WithinAbs(1 - (probed.backward() - grams) / exact.backward(), 1e-12));
    // The look at gradients counts as probe, and so the exact backwards stay what they are.
    CHECK(probed.ops.flops(Phase::kBackward) == exact.ops.flops(Phase::kBackward));
    CHECK(probed.ops.flops(Phase::kProbe) > 0);
  }
}

TEST_CASE("linears count by size; those above all gates are never sampled by items", "[flops]") {
  FormulaFlops flops({{0, 10}, {1, 30}, {-1, 60}});
  flops.add_sampled_step({0.1, 0.5}, {1, 0.2, 0.5});
  const double act = 0.1 * 0.1 + 0.3 * 0.5 + 0.6;
  const double weight = 0.1 * 0.1 + 0.3 * 0.5 * 0.2 + 0.6 * 0.5;
  CHECK_THAT(flops.backward_saved(), WithinAbs(1 - (act + weight) / 2, 1e-12));
}

TEST_CASE("the FLOPs count goes through text bit by bit", "[flops]") {
  FormulaFlops flops({{0, 1}, {1, 2}});
  for (int i = 0; i < 7; ++i) flops.add_sampled_step({1.0 / 3, 0.7}, {0.9, 1.0 / 7});
  FormulaFlops copy({{0, 1}, {1, 2}});
  copy.from_json(nlohmann::json::parse(flops.to_json().dump()));
  CHECK(copy.saved() == flops.saved());
  CHECK(copy.backward_saved() == flops.backward_saved());
  CHECK_THROWS_AS(copy.from_json(nlohmann::json::object()), Error);
}
