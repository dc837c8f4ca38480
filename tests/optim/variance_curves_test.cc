#include "optim/methods/variance_curves.h"

#include <algorithm>
#include <cmath>

#include "optim/methods/gradient_sketch.h"
#include "optim/methods/variance_probe.h"
#include "optim/methods/vcas.h"
#include "tests/support/catch.h"
#include "tests/support/fewer_cases.h"
#include "tests/support/model_fixture.h"

using namespace vcas;

namespace {

ModelOptions options_of(const std::string& model) {
  if (model == "vit")
    return read_model_options({"type=vit", "width=16", "depth=2", "heads=2", "patch=4"});
  std::vector<std::string> settings = {"type=bert", "width=8",         "depth=2",
                                       "heads=2",   "max_positions=8", "vocabulary=11"};
  settings.push_back(model == "masked words" ? "head=mlm" : "head=classification");
  settings.push_back(model == "first token" ? "pooling=first" : "pooling=mean");
  return read_model_options(settings);
}

constexpr std::int64_t kItems = 8;

ModelFixture fixture_of(const std::string& model) {
  return ModelFixture(options_of(model), {1, 8, 8}, 3, kItems, DType::kF64);
}

// What an exact pass measures, by sketches that lose nothing.
MeasuredBatch measure(ModelFixture& f) {
  VarianceProbe probe(f.model->graph, *f.ops, *f.sampled,
                      VarianceProbe::Options{.fraction = 1, .curves = true});
  probe.begin(1, 0, 1, 0);
  Exec exec = f.forward();
  BackwardContext context = f.use(f.context(SamplingMode::kExact, 1, 1));
  context.hooks = &probe.exact_backward();
  f.model->graph.backward(exec, context);
  probe.sampled_backwards(exec, context);
  return probe.result()[0];
}

struct Estimate {
  double mean = 0, error = 0;  // standard error
};

Estimate estimate(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  Estimate out;
  for (const double x : values) out.mean += x / n;
  for (const double x : values) out.error += (x - out.mean) * (x - out.mean) / (n * (n - 1));
  out.error = std::sqrt(out.error);
  return out;
}

// || G_j - G ||^2 over the weights of sampled linears, for the draws j of real backwards.
std::vector<double> squared_errors(ModelFixture& f, PassSettings settings, int draws) {
  Exec exec = f.forward();
  const std::vector<double> exact = f.gradient(exec, f.context(SamplingMode::kExact, 1, 1));
  std::vector<double> errors;
  for (int j = 0; j < draws; ++j) {
    Exec drawn = f.exec(static_cast<std::uint64_t>(j));
    settings.sampling.repeat = 1;
    const std::vector<double> sampled = f.gradient(drawn, settings);
    double sum = 0;
    for (const int weight : f.model->graph.sampled_weights()) {
      const auto [begin, end] =
          f.range(f.model->graph.parameters()[static_cast<std::size_t>(weight)]);
      for (std::size_t e = begin; e < end; ++e)
        sum += (sampled[e] - exact[e]) * (sampled[e] - exact[e]);
    }
    errors.push_back(sum);
  }
  return errors;
}

double sum_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double x : values) sum += x;
  return sum;
}

const RandomKey kDraws{.seed = 3, .stream = Stream::kProbe, .repeat = 1};

}  // namespace

TEST_CASE("capped_level spends its budget", "[curves]") {
  const std::vector<double> values = {0, 1e-3, 5, 2, 1, 1, 40}, weights = {1, 2, .5, 1, .25, 1, 1};
  for (const double budget : {0.1, 1.0, 2.5, 5.0}) {
    const double level = capped_level(values, weights, budget);
    double sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i)
      sum += weights[i] * std::min(1.0, level * values[i]);
    CHECK_THAT(sum, WithinAbs(budget, 1e-12));
  }
  CHECK(std::isinf(capped_level(values, weights, 7)));
  CHECK(std::isinf(capped_level({}, {}, 1)));
}

TEST_CASE("the curve of V_act is the variance of real backwards", "[curves][law]") {
  const std::string model = GENERATE(
      from_range(cases_to_run<std::string>({"vit", "first token", "mean", "masked words"})));
  const Selection selection = GENERATE(Selection::kSystematic, Selection::kBernoulli);
  const bool by_norm = GENERATE(false, true);
  ModelFixture f = fixture_of(model);
  const ControlledModel controlled = controlled_model(f.model->graph);
  MeasuredBatch batch = measure(f);
  const std::vector<double> importance(controlled.linears.size(), 1.0);
  PassSettings settings = f.context(SamplingMode::kItems, 1, 1, selection);
  settings.sampling.ratios.act = {0.4, 0.7};
  settings.sampling.moves_thresholds = false;
  for (std::size_t gate = 0; by_norm && gate < 2; ++gate) {
    const std::vector<double>& score = batch.item_score[gate];
    const double items = gate == 0 ? 2.3 : 5.3;  // systematic draws keep 2 and 5
    const double level = capped_level(score, {}, items);
    batch.threshold.push_back(nlohmann::json{1 / level, 0.1, 0.15});  // moves in part
  }
  f.sampled->thresholds = batch.threshold;
  const VarianceCurves::Ratios ratios{settings.sampling.ratios.act,
                                      settings.sampling.ratios.weight};
  std::vector<double> predicted;
  for (std::uint64_t n = 0; n < 20; ++n) {
    RandomKey draws = kDraws;
    draws.step = n;
    predicted.push_back(
        VarianceCurves(controlled, batch, importance, selection, draws).at(ratios).act);
  }
  const Estimate curve = estimate(predicted), real = estimate(squared_errors(f, settings, 3000));
  INFO(model << ", by norm " << by_norm << ": " << curve.mean << " +- " << curve.error
             << ", measured " << real.mean << " +- " << real.error);
  CHECK(real.error < 0.1 * real.mean);
  CHECK(std::abs(curve.mean - real.mean) <= 5 * std::hypot(curve.error, real.error));
}

TEST_CASE("the curve of V_w is the variance of real backwards", "[curves][law]") {
  const std::string model = GENERATE("vit", "first token", "mean");
  ModelFixture f = fixture_of(model);
  const ControlledModel controlled = controlled_model(f.model->graph);
  const MeasuredBatch batch = measure(f);
  const std::vector<double> importance(controlled.linears.size(), 1.0);
  const VarianceCurves curves(controlled, batch, importance, Selection::kBernoulli, kDraws);
  PassSettings settings = f.context(SamplingMode::kItemsAndRows, 1, 0.3, Selection::kBernoulli);
  const auto predicted = [&] {
    return curves.at({settings.sampling.ratios.act, settings.sampling.ratios.weight});
  };
  SECTION("of all items") {
    const Estimate real = estimate(squared_errors(f, settings, 3000));
    CHECK(predicted().act == 0);
    INFO(model << ": " << sum_of(predicted().weight) << ", measured " << real.mean);
    CHECK(std::abs(sum_of(predicted().weight) - real.mean) <= 5 * real.error);
  }
  SECTION("of the items that SampleA left, nearly: each draw has a level of its own") {
    settings.sampling.ratios.act = {0.6, 0.8};
    const Estimate both = estimate(squared_errors(f, settings, 6000));
    const double want = predicted().act + sum_of(predicted().weight);
    INFO(model << ": " << want << ", measured " << both.mean << " +- " << both.error);
    CHECK(both.error < 0.05 * both.mean);
    CHECK(std::abs(want - both.mean) <= 0.15 * both.mean);
  }
}

namespace {

// Two gates, a linear below each; random gradients and scores.
struct Tiny {
  ControlledModel model{.gates = 2, .linears = {{0, 3.0, 2.0}, {1, 1.0, 2.0}}};
  MeasuredBatch batch;
  std::vector<double> importance = {0.7, 1.3}, echo_variance = {0, 0}, row_factor = {1, 1};

  explicit Tiny(std::uint64_t seed, std::size_t count = 6) {
    constexpr std::size_t kWidth = 5;
    const PhiloxAddress address = philox_address({.seed = seed, .stream = Stream::kData});
    std::uint64_t next = 0;
    const auto normal = [&] { return philox_normal(address, next++); };
    batch.items = static_cast<std::int64_t>(count);
    batch.tokens.assign(count, 1.0);
    std::vector<double> sizes(count);  // an item that is large at one gate is at the other
    for (double& size : sizes) size = std::exp(normal());
    for (int l = 0; l < 2; ++l) {
      std::vector<std::vector<double>> h(count, std::vector<double>(kWidth));
      std::vector<double> gram, score, rows;
      std::vector<std::int64_t> offsets = {0};
      for (std::size_t i = 0; i < count; ++i) {
        std::vector<double>& item = h[i];
        const double size = sizes[i] * std::exp(0.3 * normal());
        for (double& x : item) x = size * normal();
        double square = 0;
        for (const double x : item) square += x * x;
        score.push_back(std::sqrt(square));
        for (int r = 0; r < 3; ++r) rows.push_back(score.back() * std::exp(normal()) / 3);
        offsets.push_back(std::ssize(rows));
      }
      for (const auto& a : h)
        for (const auto& b : h) {
          gram.push_back(0);
          for (std::size_t e = 0; e < kWidth; ++e) gram.back() += a[e] * b[e];
        }
      batch.gram.push_back(gram);
      batch.item_score.push_back(score);
      batch.row_score.push_back(rows);
      batch.offsets.push_back(offsets);
    }
  }

  VarianceCurves curves() const {
    VarianceCurves curves(model, batch, importance, Selection::kBernoulli, kDraws);
    curves.set_echo_variance(echo_variance);
    curves.set_row_factor(row_factor);
    return curves;
  }
  // Cost of dX and dW over that of an exact backward, and weighted variance, at these ratios.
  std::pair<double, double> at(const VarianceCurves::Ratios& ratios) const {
    const VarianceCurves::Variances v = curves().at(ratios);
    double cost = 0, variance = v.weighted_act + v.echo;
    for (std::size_t k = 0; k < 2; ++k) {
      cost += ratios.act[k] *
              (model.linears[k].input_cost + model.linears[k].weight_cost * ratios.weight[k]) / 8;
      variance += importance[k] * v.weight[k];
    }
    return {cost, variance};
  }
};

}  // namespace

TEST_CASE("the curve of V_f is the variance of draws before the forward", "[curves][law]") {
  Tiny tiny(5);
  tiny.model.linears[1].gate = GENERATE(-1, 1);        // above all gates, or below the top one
  tiny.batch.forward_score = {2, 0.3, -1, 1, 0.7, 3};  // of one item nothing is known
  const std::vector<double> known = {2, 0.3, 1, 0.7, 3};
  const std::size_t items[] = {0, 1, 3, 4, 5};
  const VarianceCurves::Ratios ratios{{1, 1}, {1, 1}, 0.6};
  std::vector<double> predicted, drawn;
  for (std::uint64_t n = 0; n < 40; ++n) {
    RandomKey draws = kDraws;
    draws.step = n;
    const VarianceCurves::Variances v =
        VarianceCurves(tiny.model, tiny.batch, tiny.importance, Selection::kSystematic, draws)
            .at(ratios);
    CHECK(v.act == 0);
    predicted.push_back(v.forward);
  }
  const std::unique_ptr<Ops> ops = make_ops("cpu");
  for (std::uint64_t n = 0; n < 4000; ++n) {
    double prob[5], scale[3];
    std::int32_t kept[3];
    std::vector<double> score = known;
    ops->run(Draw{.kept = {kept, DType::kI32, {3}},
                  .scale = {scale, DType::kF64, {3}},
                  .count = {},
                  .prob = {prob, DType::kF64, {5}},
                  .score = {score.data(), DType::kF64, {5}},
                  .id = {},
                  .budget = 3,
                  .selection = Selection::kSystematic,
                  .key = {.seed = 9, .stream = Stream::kForward, .step = n},
                  .step = {}});
    std::vector<double> error = {-1, -1, 0, -1, -1, -1};
    for (int i = 0; i < 3; ++i) error[items[kept[i]]] += scale[i];
    drawn.push_back(0);
    for (const std::vector<double>& gram : tiny.batch.gram)
      for (std::size_t i = 0; i < 6; ++i)
        for (std::size_t j = 0; j < 6; ++j) drawn.back() += error[i] * error[j] * gram[6 * i + j];
  }
  const Estimate curve = estimate(predicted), real = estimate(drawn);
  INFO(curve.mean << " +- " << curve.error << ", drawn " << real.mean << " +- " << real.error);
  CHECK(real.error < 0.1 * real.mean);
  CHECK(std::abs(curve.mean - real.mean) <= 5 * std::hypot(curve.error, real.error));
}

// A batch twice as large, with three rows in place of each. Rows of one stretch are alike.
TEST_CASE("some items and rows of a large batch tell of all", "[curves]") {
  constexpr auto kCompared = static_cast<std::size_t>(kMostItemsCompared);
  Tiny small(2, kCompared), large(2, kCompared);
  for (Tiny* tiny : {&small, &large}) {
    tiny->batch.forward_score.assign(kCompared, 1.0);
    tiny->batch.forward_norm = tiny->batch.item_score.back();
  }
  large.batch.items *= 2;
  large.batch.tokens.resize(2 * kCompared, 9.0);
  for (std::size_t k = 0; k < 2; ++k) {
    large.batch.item_score[k].resize(2 * kCompared, 100.0);
    large.model.linears[k].weight_cost /= 3;
    large.model.linears[k].input_cost /= 3;
    std::vector<double> rows;
    for (const double z : large.batch.row_score[k]) rows.insert(rows.end(), 3, z / std::sqrt(3.0));
    large.batch.row_score[k] = rows;
    for (std::int64_t& offset : large.batch.offsets[k]) offset *= 3;
  }
  const VarianceCurves::Ratios ratios{{0.3, 0.5}, {0.3, 0.6}, 0.8};
  const VarianceCurves::Variances one = small.curves().at(ratios), two = large.curves().at(ratios);
  CHECK_THAT(two.forward, WithinRel(2 * one.forward, 1e-9));
  CHECK_THAT(two.expected_forward, WithinRel(2 * one.expected_forward, 1e-9));
  CHECK_THAT(two.act, WithinRel(2 * one.act, 1e-9));
  const double budget = (one.weight[0] + one.weight[1]) / 4;
  const VarianceCurves::Ratios few = small.curves().within(budget, 1).ratios;
  const VarianceCurves::Ratios many = large.curves().within(2 * budget, 0.5).ratios;
  CHECK(few.forward == many.forward);
  for (std::size_t k = 0; k < 2; ++k) {
    CHECK_THAT(two.weight[k], WithinRel(2 * one.weight[k], 1e-9));
    CHECK_THAT(many.act[k], WithinRel(few.act[k], 1e-9));
    CHECK_THAT(many.weight[k], WithinRel(few.weight[k], 1e-9));
    CHECK(few.weight[k] < 1);
  }
}

TEST_CASE("the rows that are looked at lie at random", "[curves]") {
  Tiny tiny(1);
  std::vector<double> rows(2400, 1.0);
  for (std::size_t r = 0; r < rows.size(); r += 5) rows[r] = 3;  // one of each stretch
  tiny.batch.row_score[0] = rows;
  tiny.batch.offsets[0] = {0, 400, 800, 1200, 1600, 2000, 2400};
  // Half of all rows: the large ones, and 3/8 of the others.
  CHECK_THAT(tiny.curves().at({{1, 1}, {0.5, 1}}).weight[0], WithinRel(1920 * 5 / 3.0, 0.1));
}

TEST_CASE("ratios before the forward rest on the norms that are expected", "[curves]") {
  Tiny tiny(5);
  double trace = 0;
  for (std::size_t k = 0; k < 2; ++k)
    for (const double score : tiny.batch.item_score[k]) trace += tiny.importance[k] * score * score;
  tiny.batch.forward_score.assign(6, 1.0);
  const auto expect = [&](double times) {
    tiny.batch.forward_norm = tiny.batch.item_score.back();
    for (double& norm : tiny.batch.forward_norm) norm *= times;
  };
  const auto expected = [&] { return tiny.curves().at({{1, 1}, {1, 1}, 0.5}).expected_forward; };
  const auto ratio = [&] { return tiny.curves().within(trace, 1).ratios.forward; };
  const auto spent = [&](double budget) {
    const VarianceCurves curves = tiny.curves();
    const VarianceCurves::Variances v = curves.at(curves.within(budget, 1).ratios);
    CHECK(v.expected_forward > 0.2 * budget);
    return v.expected_forward + v.weighted_act + tiny.importance[0] * v.weight[0] +
           tiny.importance[1] * v.weight[1];
  };
  expect(1);
  CHECK_THAT(spent(trace), WithinRel(trace, 0.15));
  CHECK_THAT(expected(), WithinRel(trace, 1e-9));  // as 1 / pi - 1 is 1
  const double now = ratio();
  expect(3);
  CHECK_THAT(expected(), WithinRel(9 * trace, 1e-9));
  CHECK(ratio() > now);
  expect(0);
  CHECK(ratio() < now);
  tiny.batch.forward_score[2] = -1;  // unknown items are kept
  tiny.batch.forward_norm.assign(6, 0.0);
  tiny.batch.forward_norm[2] = -1;
  CHECK(expected() == 0);
}

TEST_CASE("no other ratios meet the budget at less cost", "[curves][law]") {
  Tiny tiny(GENERATE(1, 2, 3));
  const double all = tiny.at({{0.3, 0.5}, {0.3, 0.3}}).second;
  // Echoes, where there are any, add as much as the rest or more. At the lower gate alone they make
  // the gates share a level.
  switch (GENERATE(0, 1, 2, 3)) {
    case 1:
      tiny.echo_variance = {all, 2 * all};
      break;
    case 2:
      tiny.echo_variance = {20 * all, 0};
      break;
    case 3:
      tiny.row_factor = {0.3, 1.5};
      break;
  }
  for (const double budget : {0.1 * all, 0.4 * all}) {
    const VarianceCurves::Optimum best = tiny.curves().within(budget, 1);
    const auto [cost, variance] = tiny.at(best.ratios);
    INFO("budget " << budget << ", variance " << variance << ", cost " << cost);
    CHECK_THAT(variance, WithinRel(budget, 0.1));
    CHECK(best.ratios.act[0] <= best.ratios.act[1]);
    double least = 1e9;
    const std::vector<double> grid = cases_to_run({0.1, 0.2, 0.3, 0.4, 0.55, 0.75, 1.0});
    for (const double a : grid)
      for (const double b : grid)
        for (const double v : grid)
          for (const double w : grid) {
            if (b < a) continue;
            const VarianceCurves::Ratios other{{a, b}, {v, w}};
            const auto [other_cost, other_variance] = tiny.at(other);
            if (other_variance <= variance) least = std::min(least, other_cost);
          }
    INFO("the least cost of a grid: " << least);
    CHECK(cost <= 1.05 * least);
  }
}

TEST_CASE("a small budget keeps most items, though whole numbers of them may round to all",
          "[curves]") {
  Tiny tiny(GENERATE(1, 2, 3, 4));
  const bool by_norm = GENERATE(false, true);
  if (by_norm) tiny.batch.threshold.resize(2);
  const double all = tiny.at({{0.5, 0.5}, {1, 1}}).second;
  for (const double share : {0.003, 0.01, 0.03, 0.06}) {
    const VarianceCurves curves(tiny.model, tiny.batch, tiny.importance, Selection::kSystematic,
                                kDraws);
    INFO("share " << share << ", by norm " << by_norm);
    CHECK(curves.within(share * all, 1).ratios.act[1] > 0.8);
  }
}

TEST_CASE("few items, of which whole numbers are drawn, do not exceed the budget", "[curves]") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Tiny tiny(seed);
    for (ControlledModel::Linear& linear : tiny.model.linears) linear.exact = true;
    const VarianceCurves curves(tiny.model, tiny.batch, tiny.importance, Selection::kSystematic,
                                kDraws);
    const double half = curves.at({{0.5, 0.5}, {1, 1}}).weighted_act;
    for (const double share : {0.01, 0.1, 1.0}) {
      INFO("seed " << seed << ", share " << share);
      CHECK(curves.at(curves.within(share * half, 1).ratios).weighted_act <= 1.1 * share * half);
    }
  }
}

TEST_CASE("the water level does not depend on the scale of gradients", "[curves]") {
  Tiny tiny(4), small(4);
  for (int l = 0; l < 2; ++l) {
    for (double& x : small.batch.gram[l]) x *= 1e-20;
    for (double& x : small.batch.row_score[l]) x *= 1e-10;
    for (double& x : small.batch.item_score[l]) x *= 1e-10;
    small.importance[l] *= 1e20;
  }
  const VarianceCurves::Optimum a = tiny.curves().within(1, 1), b = small.curves().within(1, 1);
  for (int l = 0; l < 2; ++l) {
    CHECK_THAT(a.ratios.act[l], WithinRel(b.ratios.act[l], 1e-9));
    CHECK_THAT(a.ratios.weight[l], WithinRel(b.ratios.weight[l], 1e-9));
  }
}

TEST_CASE("thresholds give a batch the ratios of what they keep of it", "[curves]") {
  Tiny tiny(6);
  const VarianceCurves::Ratios given{{0.3, 0.5}, {1, 1}};
  CHECK(tiny.curves().by_thresholds(given).act == given.act);
  const std::vector<double>& top = tiny.batch.item_score[1];
  const auto threshold = [](double t) -> ItemThreshold { return nlohmann::json{t, 0.0, 1.0}; };
  const auto items = static_cast<double>(top.size());
  ItemThreshold of_step = threshold(*std::ranges::max_element(top) / 0.8);
  tiny.batch.threshold = {{}, of_step};
  of_step.follow(top, given.act[1] * items);  // as a step with this batch would
  const double kept = of_step.kept(top, 0);
  CHECK_THAT(tiny.curves().by_thresholds(given).act[1], WithinRel(kept / items, 1e-9));
  CHECK_THAT(tiny.curves().by_thresholds(given).act[0], WithinRel(given.act[0], 1e-9));
  // A gate without a draw of its own keeps what the one above keeps.
  CHECK(tiny.curves().by_thresholds({{0.5, 0.5}, {1, 1}}).act[0] ==
        tiny.curves().by_thresholds({{0.5, 0.5}, {1, 1}}).act[1]);
  // So high that nothing is kept there, and nothing can be below.
  tiny.batch.threshold[0] = threshold(1e30);
  CHECK(tiny.curves().by_thresholds(given).act[0] < 1e-9);
  tiny.batch.threshold[0] = threshold(1e-30);  // all that have come
  CHECK_THAT(tiny.curves().by_thresholds(given).act[0], WithinRel(kept / items, 1e-9));
}
