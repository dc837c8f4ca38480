#include "optim/methods/budget_controller.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "tests/optim/budget_fixture.h"
#include "tests/optim/controller_settings.h"
#include "tests/optim/trainer_fixture.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

TrainerOptions trainer_options() {
  TrainerOptions options = TrainerFixture::defaults();
  vcas_of(options) = budget_options();
  vcas_of(options).tau_act = vcas_of(options).tau_w = 0.2;
  vcas_of(options).update_every = 8;
  return options;
}

}  // namespace

TEST_CASE("V_s of a batch has one degree of freedom less than items", "[controller]") {
  // Items 1, 2 and 6 on a line: variance 7, of the sum of three 21.
  CHECK_THAT(variance_of_sum({1, 2, 6, 2, 4, 12, 6, 12, 36}, 3), WithinAbs(21, 1e-12));
  // Three of six items tell of all.
  CHECK_THAT(variance_of_sum({1, 2, 6, 2, 4, 12, 6, 12, 36}, 6), WithinAbs(42, 1e-12));
  CHECK(variance_of_sum({5}, 1) == 0);
  CHECK(variance_of_sum({}, 0) == 0);
}

TEST_CASE("probes of the budget controller begin at once and grow apart", "[controller]") {
  VcasOptions options = budget_options();
  options.update_every = 20;
  const BudgetController controller(options, two_linears(), 1, 1000);
  std::vector<std::int64_t> due;
  for (std::int64_t step = 0; step < 100; ++step)
    if (controller.probe_due(step)) due.push_back(step);
  CHECK(due == std::vector<std::int64_t>{0, 2, 6, 14, 30, 50, 70, 90});
  options.update_every = 0;
  CHECK(options.probe_interval(100) == 10);
  CHECK(options.probe_interval(100000) == 200);
}

TEST_CASE("one probe sets ratios within the budget", "[controller]") {
  BudgetController controller(budget_options(), two_linears(), 1, 1000);
  CHECK(controller.act_ratio() == std::vector<double>{1});
  CHECK(controller.update({batch_of()}).empty());
  CHECK(controller.act_ratio()[0] < 1);
  CHECK(controller.weight_ratio()[0] < 1);
  CHECK(controller.report()["lambda"] != 1);
  BudgetController small(budget_options(), two_linears(), 1, 1000);
  CHECK(small.update({batch_of(1e-8)}).empty());
  CHECK_THAT(small.act_ratio()[0], WithinRel(controller.act_ratio()[0], 1e-9));
  // What the same batch would have spent at these ratios.
  CHECK(controller.update({batch_of()}).empty());
  const nlohmann::ordered_json found = controller.measured();
  const double spent = found["spent_act"].get<double>() + found["spent_w"].get<double>();
  CHECK_THAT(spent, WithinRel(0.1, 0.15));
  CHECK(found["kappa"].is_null());
  VcasOptions bounded = budget_options();
  bounded.weight_ratio_min = 0.98;
  BudgetController least(bounded, two_linears(), 1, 1000);
  CHECK(least.update({batch_of()}).empty());
  CHECK(least.weight_ratio() == std::vector<double>{0.98, 0.98});
}

// V_s, pooled over more probes than the sum of squares is, lags: most of the budget stays unspent.
TEST_CASE("a gradient that grows from probe to probe spends most of its budget", "[controller]") {
  BudgetController controller(budget_options(), two_linears(), 1, 1000);
  double scale = 1;
  for (int probe = 0; probe < 12; ++probe, scale *= 2)
    CHECK(controller.update({batch_of(scale)}).empty());
  const nlohmann::ordered_json found = controller.measured();
  const double v_s = found["v_s"];
  const double spent = found["v_act"].get<double>() + found["v_w"].get<double>();
  CHECK(controller.report()["aim"] > 0.6);
  CHECK(spent / v_s > 0.05);
  CHECK(spent / v_s < 0.1);
}

TEST_CASE("one probe that spends very much does not lower the aim for long", "[controller]") {
  BudgetController controller(budget_options(), two_linears(), 1, 1000);
  const auto aim_after = [&](const MeasuredBatch& batch) {
    CHECK(controller.update({batch}).empty());
    return controller.report()["aim"].get<double>();
  };
  for (int probe = 0; probe < 6; ++probe) CHECK(aim_after(batch_of()) > 0.8);
  const double lowered = aim_after(even_batch());
  const nlohmann::ordered_json found = controller.measured();
  CHECK(found["spent_act"].get<double>() + found["spent_w"].get<double>() > 1);  // of 0.1
  CHECK(lowered < 0.6);
  CHECK(lowered > 0.4);
  for (int probe = 0; probe < 11; ++probe) aim_after(batch_of());
  CHECK(aim_after(batch_of()) > 0.8);
}

TEST_CASE("the aim is over what was spent of earlier aims, once four probes have spent",
          "[controller]") {
  BudgetController controller(budget_options(), two_linears(), 1, 1000);
  double pooled = 0;
  std::int64_t probes = 0;
  for (const char kind : std::string("ueeeeeuuuee")) {
    const double aim = controller.report()["aim"];
    CHECK(controller.update({kind == 'e' ? even_batch() : batch_of()}).empty());
    if (probes++ == 0) continue;  // all was kept until then
    const nlohmann::ordered_json found = controller.measured();
    const double spent = (found["spent_act"].get<double>() + found["spent_w"].get<double>()) / 0.1;
    const auto forgets = static_cast<double>(std::min<std::int64_t>(probes - 1, 4));
    pooled += (std::min(spent / aim, 5.0) - pooled) / forgets;
    CHECK_THAT(controller.to_json()["spent"].get<double>(), WithinRel(pooled, 1e-9));
    const double want = probes > 4 ? 1 / std::max(pooled, 1.0) : 1;
    CHECK_THAT(controller.report()["aim"].get<double>(), WithinRel(want, 1e-9));
  }
}

// `factor` is that of the first linear. The second draws none.
TEST_CASE("draws of rows that add more than Eq. 3 keep more rows", "[controller]") {
  const double factor = GENERATE(0.25, 4.0);
  const auto drawn = [&] {
    MeasuredBatch batch = batch_of();
    batch.drawn_error = {factor, 0};
    batch.drawn_variance = {1, 0};
    return batch;
  };
  BudgetController controller(budget_options(), two_linears(), 1, 1000);
  BudgetController by_equation_3(budget_options(), two_linears(), 1, 1000);
  const auto factors = [&] { return controller.measured()["row_factor"]; };
  CHECK(controller.update({batch_of()}).empty());
  CHECK(by_equation_3.update({batch_of()}).empty());
  CHECK(factors() == nlohmann::ordered_json{1.0, 1.0});
  CHECK(controller.update({drawn()}).empty());
  CHECK(by_equation_3.update({batch_of()}).empty());
  CHECK(factors() == nlohmann::ordered_json{(1 + factor) / 2, 1.0});
  for (int probe = 0; probe < 40; ++probe) {
    MeasuredBatch useless = drawn();
    useless.drawn_error[0] = std::numeric_limits<double>::infinity();
    CHECK(controller.update({drawn(), useless}).empty());
    CHECK(by_equation_3.update({batch_of(), batch_of()}).empty());
  }
  CHECK_THAT(factors()[0].get<double>(), WithinRel(factor, 0.05));
  CHECK(factors()[1] == 1);
  if (factor < 1) {  // what draws add less than Eq. 3 stays unspent
    CHECK(controller.act_ratio() == by_equation_3.act_ratio());
    CHECK(controller.weight_ratio() == by_equation_3.weight_ratio());
  } else {
    CHECK(controller.weight_ratio()[0] > by_equation_3.weight_ratio()[0] + 0.05);
    const nlohmann::ordered_json found = controller.measured();
    CHECK_THAT(found["spent_act"].get<double>() + found["spent_w"].get<double>(),
               WithinRel(0.1, 0.15));
  }

  const nlohmann::json state = controller.to_json();
  BudgetController read(budget_options(), two_linears(), 1, 1000);
  read.from_json(state);
  CHECK(read.to_json() == state);
  VcasOptions independent = budget_options();
  independent.selection = "bernoulli";
  BudgetController fork(independent, two_linears(), 1, 1000);
  fork.from_json(state);
  CHECK(fork.to_json()["row_factor"] == nlohmann::json{1.0, 1.0});
  nlohmann::json before = state;
  before.erase("row_factor");  // as earlier programs wrote it
  BudgetController old(budget_options(), two_linears(), 1, 1000);
  old.from_json(before);
  CHECK(old.to_json()["row_factor"] == nlohmann::json{1.0, 1.0});
  before["row_factor"] = {1.0};
  CHECK_THROWS_WITH(
      old.from_json(before),
      "the state of the VCAS controller has 1 numbers in its row_factor, the model 2");
}

TEST_CASE("one draw of rows is no reason to draw none for long", "[controller]") {
  BudgetController controller(budget_options(), two_linears(), 1, 1000);
  const auto factors = [&](double error, double variance) {
    MeasuredBatch batch = batch_of();
    batch.drawn_error = {error, 0};
    batch.drawn_variance = {variance, 0};
    CHECK(controller.update({batch}).empty());
    return controller.measured()["row_factor"];
  };
  CHECK(factors(1e9, 1) == nlohmann::ordered_json{16.0, 1.0});
  CHECK(factors(1, 1) == nlohmann::ordered_json{8.5, 1.0});
  // Rounding: variances of no weight beside V_s.
  CHECK(factors(1e-12, 1e-30) == nlohmann::ordered_json{6.0, 1.0});
}

TEST_CASE("batches of several ranks set the mean of their ratios", "[controller][ranks]") {
  MeasuredBatch even = batch_of();  // items of one size: none can be left out as well
  even.item_score[0].assign(kProbeItems, 0.1);
  const auto ratios = [](const std::vector<MeasuredBatch>& probe) {
    BudgetController controller(budget_options(), two_linears(), 1, 1000);
    CHECK(controller.update(probe).empty());
    return controller.act_ratio()[0];
  };
  const double uneven_alone = ratios({batch_of()}), even_alone = ratios({even});
  CHECK_THAT(ratios({batch_of(), batch_of(), batch_of()}), WithinRel(uneven_alone, 1e-12));
  CHECK(std::abs(uneven_alone - even_alone) > 0.1);
  CHECK_THAT(ratios({batch_of(), even}), WithinRel((uneven_alone + even_alone) / 2, 1e-9));
  CHECK_THAT(ratios({even, batch_of()}), WithinRel((uneven_alone + even_alone) / 2, 1e-9));

  MeasuredBatch known = batch_of();
  known.forward_norm = known.item_score[0];
  for (const double norm : known.forward_norm) known.forward_score.push_back(std::sqrt(norm));
  VcasOptions options = budget_options();
  options.tau_f = 0.3;
  const auto measured = [&](std::size_t ranks) {
    BudgetController controller(options, two_linears(), 1, 1000);
    for (int probe = 0; probe < 2; ++probe)
      CHECK(controller.update(std::vector(ranks, known)).empty());
    nlohmann::ordered_json found = controller.measured();
    found["lambda"] = controller.to_json()["lambda"];
    return found;
  };
  const nlohmann::ordered_json one = measured(1), three = measured(3);
  CHECK_THAT(one["expected_f"].get<double>() + one["spent_act"].get<double>() +
                 one["spent_w"].get<double>(),
             WithinRel(0.4, 0.2));  // that of drops before the forward is in it
  for (const char* key :
       {"v_s", "v_f", "v_act", "v_w", "spent_f", "expected_f", "spent_act", "spent_w", "lambda"}) {
    INFO(key);
    CHECK(one[key] > 0);
    CHECK_THAT(three[key].get<double>(), WithinRel(one[key].get<double>(), 1e-9));
  }
  for (const std::string part : {"f", "act", "w"}) {  // both linears are alike
    INFO(part);
    CHECK_THAT(one["spent_" + part].get<double>(),
               WithinRel(one["v_" + part].get<double>() / one["v_s"].get<double>(), 1e-9));
  }
}

namespace {

// A probe whose sampled pass finds V_act of K, and phi_l (1 - rho_l)^2 beyond it below each gate.
MeasuredBatch batch_with_echoes(const BudgetController& controller, const ControlledModel& model,
                                const std::vector<double>& phi) {
  MeasuredBatch batch = batch_of();
  batch.item_score.assign(phi.size(), batch.item_score[0]);
  batch.passes = controller.probe_passes();
  if (batch.passes == 0) return batch;
  const double v_s = variance_of_sum(batch.gram[0], batch.items);  // of both linears
  const std::vector<double> relative = {0.5 / v_s, 0.5 / v_s};
  const VarianceCurves curves(model, batch, relative, Selection::kSystematic, {});
  const VarianceCurves::Variances by_gram = curves.at({controller.act_ratio(), {1, 1}});
  for (std::size_t k = 0; k < 2; ++k) {
    const auto gate = static_cast<std::size_t>(model.linears[k].gate);
    const auto sharing = static_cast<double>(2 / phi.size());  // linears below this gate
    const double act =
        by_gram.gate_act[gate] + phi[gate] * std::pow(1 - controller.act_ratio()[gate], 2);
    batch.v_act[k] = 2 * v_s * act / sharing;
  }
  return batch;
}

ControlledModel mixing_items() {
  ControlledModel model = two_linears();
  model.mixes_items = true;
  return model;
}

}  // namespace

TEST_CASE("where items are mixed, passes tell what echoes add", "[controller]") {
  constexpr double kPhi = 0.5;
  const ControlledModel mixing = mixing_items(), plain = two_linears();
  BudgetController mixed(budget_options(), mixing, 1, 1000);
  BudgetController ranks(budget_options(), mixing, 1, 1000);
  BudgetController other(budget_options(), plain, 1, 1000);
  MeasuredBatch last;
  for (int probe = 0; probe < 40; ++probe) {
    last = batch_with_echoes(mixed, mixing, {kPhi});
    CHECK(last.passes == (probe > 0 ? 1 : 0));
    CHECK(mixed.update({last}).empty());
    CHECK(ranks.update({last, last, last}).empty());
    // Elsewhere the curves stand, and a warning says so.
    const MeasuredBatch found = batch_with_echoes(other, plain, {kPhi});
    CHECK(other.update({found}).empty() == (found.passes == 0 || probe < 29));
  }
  for (const BudgetController* controller : {&mixed, &ranks}) {
    const auto phi = controller->report()["echo_variance"].get<std::vector<double>>();
    REQUIRE(phi.size() == 1);
    CHECK_THAT(phi[0], WithinRel(kPhi, 0.1));
  }
  CHECK(!other.report().contains("echo_variance"));
  const nlohmann::ordered_json found = mixed.measured();
  CHECK_THAT(found["v_act"].get<double>(), WithinRel(last.v_act[0] + last.v_act[1], 1e-12));
  CHECK_THAT(found["spent_act"].get<double>() + found["spent_w"].get<double>(),
             WithinRel(0.1, 0.15));
  CHECK(mixed.report()["aim"] > 0.9);
  CHECK(mixed.act_ratio()[0] > other.act_ratio()[0] + 0.05);
  BudgetController read(budget_options(), mixing, 1, 1000);
  nlohmann::json state = mixed.to_json();
  CHECK(state.at("echo_probes") == 39);
  read.from_json(state);
  CHECK(read.to_json() == state);
  CHECK(read.report() == mixed.report());
  state["echo_excess"] = {1, 2};
  CHECK_THROWS_WITH(
      read.from_json(state),
      "the state of the VCAS controller has 2 numbers in its echo_excess, the model 1");
  CHECK(read.report() == mixed.report());
  for (const char* key : {"echo_excess", "echo_dropped", "echo_probes"}) state.erase(key);
  BudgetController old(budget_options(), mixing, 1, 1000);
  old.from_json(state);
  CHECK(old.report()["echo_variance"] == nlohmann::ordered_json{0.0});
}

TEST_CASE("each gate has its own phi", "[controller]") {
  const std::vector<double> phi = {0.4, 1.5};
  const ControlledModel model{.gates = 2,
                              .linears = {{0, 2.0, 2.0}, {1, 1.0, 1.0}},
                              .exact_gates = {},
                              .mixes_items = true};
  BudgetController controller(budget_options(), model, 1, 1000);
  const auto found = [&] {
    return controller.report()["echo_variance"].get<std::vector<double>>();
  };
  for (int probe = 0; probe < 40; ++probe)
    CHECK(controller.update({batch_with_echoes(controller, model, phi)}).empty());
  CHECK_THAT(found()[0], WithinRel(phi[0], 0.15));
  CHECK_THAT(found()[1], WithinRel(phi[1], 0.15));
  CHECK(controller.act_ratio()[0] < controller.act_ratio()[1] - 0.05);
  for (int probe = 0; probe < 3; ++probe) {
    MeasuredBatch open_above = batch_with_echoes(controller, model, phi);
    open_above.v_act[1] = 0;
    static_cast<void>(controller.update({open_above}));
  }
  CHECK_THAT(found()[0], WithinRel(phi[0], 0.15));
  CHECK_THAT(found()[1], WithinRel(phi[1] / 8, 0.15));
}

// Echoes of all gates may be as many as the items that a ratio leaves out.
TEST_CASE("passes that find gates open take back what earlier ones said", "[controller]") {
  const ControlledModel model = mixing_items();
  BudgetController controller(budget_options(), model, 1, 1000);
  const auto probe = [&](bool open) {
    MeasuredBatch batch = batch_with_echoes(controller, model, {1000});
    if (open) batch.v_act = {0, 0};
    static_cast<void>(controller.update({batch}));
    return controller.report()["echo_variance"][0].get<double>();
  };
  for (int i = 0; i < 10; ++i) probe(false);
  CHECK_THAT(probe(false), WithinRel(1000.0, 0.1));
  CHECK(controller.act_ratio()[0] > 0.95);
  for (int i = 0; i < 20; ++i) probe(true);
  CHECK(probe(true) < 1);
  CHECK(controller.act_ratio()[0] < 0.9);
}

TEST_CASE("more budget keeps less", "[controller]") {
  double before = 2;
  for (const double tau : {0.001, 0.01, 0.1, 1.0}) {
    VcasOptions options = budget_options();
    options.tau_act = options.tau_w = tau;
    options.budget = GENERATE("relative", "absolute");
    BudgetController controller(options, two_linears(), 1, 1000);
    CHECK(controller.update({batch_of()}).empty());
    const double cost = controller.act_ratio()[0] *
                        (3 + 2 * controller.weight_ratio()[0] + controller.weight_ratio()[1]);
    CHECK(cost < 3 * before);
    before = cost / 3;
  }
}

TEST_CASE("a relative budget is that of the mean linear layer, an absolute one of all together",
          "[controller]") {
  VcasOptions options = budget_options();
  options.sample = "rows";
  options.budget = GENERATE("relative", "absolute");
  MeasuredBatch batch = batch_of();
  for (double& product : batch.gram[1]) product *= 100;
  for (double& score : batch.row_score[1]) score *= 10;
  BudgetController controller(options, two_linears(), 1, 1000);
  for (int probe = 0; probe < 2; ++probe) CHECK(controller.update({batch}).empty());
  const nlohmann::ordered_json found = controller.measured();
  const auto v_w = found["v_w_linear"].get<std::vector<double>>();
  const auto v_s = found["v_s_linear"].get<std::vector<double>>();
  const double spent = options.budget == "relative" ? (v_w[0] / v_s[0] + v_w[1] / v_s[1]) / 2
                                                    : (v_w[0] + v_w[1]) / (v_s[0] + v_s[1]);
  CHECK_THAT(spent, WithinRel(0.05, 0.1));
}

TEST_CASE("an item ratio is the mean over batches of which thresholds keep more or fewer",
          "[controller]") {
  VcasOptions options = budget_options();
  options.sample = "items";
  BudgetController fixed(options, two_linears(), 1, 1000), by_norm(options, two_linears(), 1, 1000);
  MeasuredBatch batch = batch_of();
  CHECK(fixed.update({batch}).empty());
  CHECK(by_norm.update({batch}).empty());
  const double before = fixed.act_ratio()[0], mean = before * kProbeItems;
  CHECK(fixed.update({batch}).empty());
  const double best = 2 * fixed.act_ratio()[0] - before;  // of this batch: two probes are pooled
  const std::vector<double>& score = batch.item_score[0];
  const double few = GENERATE(0.8, 1.2) * mean;
  const double level = capped_level(score, {}, few);
  batch.threshold = {nlohmann::json{1 / level, 0.0, 1.0}};
  ItemThreshold of_step = batch.threshold[0];
  of_step.follow(score, mean);
  CHECK(by_norm.update({batch}).empty());
  const double wanted = best * mean / of_step.kept(score, mean);
  CHECK_THAT(by_norm.act_ratio()[0], WithinRel((before + wanted) / 2, 0.02));
}

TEST_CASE("the budget controller samples items alone, or rows, within their own tau",
          "[controller]") {
  VcasOptions options = budget_options();
  options.tau_act = 0.1, options.tau_w = 0.03;
  options.sample = GENERATE("items", "rows");
  const bool items = options.sample == "items";
  BudgetController controller(options, two_linears(), 1, 1000);
  CHECK(controller.update({batch_of()}).empty());
  CHECK((controller.act_ratio()[0] < 1) == items);
  for (const double ratio : controller.weight_ratio()) CHECK((ratio < 1) == !items);
  CHECK(controller.update({batch_of()}).empty());
  const nlohmann::ordered_json found = controller.measured();
  CHECK_THAT(found["spent_act"].get<double>(), WithinRel(items ? 0.1 : 0, 0.15));
  CHECK_THAT(found["spent_w"].get<double>(), WithinRel(items ? 0 : 0.03, 0.15));
}

TEST_CASE("a probe that knows no V_s leaves the ratios and says so", "[controller]") {
  BudgetController controller(budget_options(), two_linears(), 1, 1000);
  CHECK(controller.update({batch_of()}).empty());
  const nlohmann::ordered_json before = controller.report();
  SECTION("of a batch of one item") {
    MeasuredBatch one = batch_of();
    one.items = 1;
    one.tokens = {1};
    one.gram = {{1}, {1}};
    CHECK(controller.update({one}) == "all keep ratios stay: the probe measured V_s = 0");
  }
  SECTION("of a gradient that is not finite") {
    MeasuredBatch bad = batch_of();
    bad.gram[0][0] = std::numeric_limits<double>::quiet_NaN();
    CHECK_THAT(controller.update({bad}), ContainsSubstring("all keep ratios stay"));
  }
  CHECK(controller.report() == before);
  CHECK(controller.measured()["v_w_linear"] == nlohmann::ordered_json({0.0, 0.0}));
}

TEST_CASE("a linear keeps its ratio while it has no gradient", "[controller]") {
  BudgetController controller(budget_options(), two_linears(), 1, 1000);
  const bool had_one = GENERATE(false, true);
  if (had_one) CHECK(controller.update({batch_of()}).empty());
  const std::vector<double> before = controller.weight_ratio();
  MeasuredBatch batch = had_one ? even_batch() : batch_of();
  batch.gram[1].assign(kProbeItems * kProbeItems, 0.0);
  batch.row_score[1].assign(2 * kProbeItems, 0.0);
  CHECK(controller.update({batch}) == "1 of 2 weight ratios stay: their V_s is zero");
  CHECK(controller.weight_ratio()[0] < 1);
  CHECK(controller.weight_ratio()[0] != before[0]);
  CHECK(controller.weight_ratio()[1] == before[1]);
}

TEST_CASE("curves that Monte Carlo contradicts are complained of", "[controller]") {
  const double kappa = GENERATE(0.45, 1.0, 2.1);  // times what the curves predict
  BudgetController controller(budget_options(), two_linears(), 1, 1000);
  const ControlledModel model = two_linears();
  std::string note;
  for (std::uint64_t probe = 0; probe < 40; ++probe) {
    MeasuredBatch batch = batch_of();
    batch.passes = controller.probe_passes();
    CHECK((batch.passes > 0) == (probe % 10 == 9));
    const double v_s = variance_of_sum(batch.gram[0], batch.items);  // of both linears
    const std::vector<double> relative = {0.5 / v_s, 0.5 / v_s};
    const VarianceCurves::Variances predicted =
        VarianceCurves(model, batch, relative, Selection::kSystematic,
                       {.seed = 1, .stream = Stream::kProbe, .step = probe + 1, .repeat = 1})
            .at({controller.act_ratio(), controller.weight_ratio()});
    batch.v_act.assign(2, kappa * predicted.act / 2);
    for (std::size_t k = 0; k < 2; ++k) batch.v_w[k] = kappa * predicted.weight[k];
    note = controller.update({batch});
    CHECK(note.empty() == (kappa == 1 || (probe != 29 && probe != 39)));
  }
  CHECK_THAT(controller.measured()["kappa"].get<double>(), WithinRel(kappa, 1e-9));
  if (kappa != 1)
    CHECK(note == fmt::format("sampling adds {:.2f} times the variance that the curves predict, by "
                              "Monte Carlo on 4 probes",
                              kappa));
}

TEST_CASE("settings of the budget controller are checked", "[controller]") {
  CHECK(config_error(R"({"controller": "budget", "update_every": 2})").empty());
  CHECK_THAT(config_error(R"({"controller": "budget", "tau_act": 0, "tau_w": 0})"),
             ContainsSubstring("tau_act and tau_w must not both be 0"));
  CHECK(config_error(R"({"controller": "budget", "sample": "items", "tau_w": 0})").empty());
  CHECK_THAT(config_error(R"({"controller": "budget", "sample": "rows", "tau_w": 0})"),
             ContainsSubstring("tau_w must not be 0: without a budget of variance"));
  CHECK_THAT(config_error(R"({"sample": "rows", "act_ratio": [0.5]})"),
             ContainsSubstring("sample must not be \"rows\" where ratios of items are given"));
  CHECK_THAT(config_error(R"({"sample": "items", "weight_ratio": [0.5]})"),
             ContainsSubstring("sample must not be \"items\" where ratios of rows are given"));
  CHECK_THAT(config_error(R"({"controller": "budget", "tau_w": -1})"),
             ContainsSubstring("must be at least 0"));
  CHECK_THAT(config_error(R"({"controller": "paper", "kept_items": "by_norm"})"),
             ContainsSubstring("must not be \"by_norm\" with the paper's controller"));
  CHECK(config_error(R"({"controller": "budget", "kept_items": "by_norm"})").empty());
  CHECK_THAT(config_error(R"({"controller": "bugdet"})"), ContainsSubstring("budget"));
  CHECK_THAT(config_error(R"({"budget": "none"})"), ContainsSubstring("relative"));
}

TEST_CASE("measured seconds are what a budget saves", "[controller]") {
  const auto ratios_by = [&](const std::vector<double>& weight_seconds, double item_seconds) {
    VcasOptions options = budget_options();
    options.cost = "time";
    BudgetController controller(options, two_linears(), 1, 1000);
    MeasuredBatch batch = batch_of();
    batch.weight_seconds = weight_seconds;
    if (!weight_seconds.empty()) batch.item_seconds = {item_seconds};
    CHECK(controller.update({batch}).empty());
    std::vector<double> ratios = controller.weight_ratio();
    ratios.push_back(controller.act_ratio()[0]);
    return ratios;
  };
  const std::vector<double> flops = ratios_by({}, 0);
  SECTION("seconds in proportion to FLOPs give the same ratios") {
    const std::vector<double> seconds = ratios_by({2e-3, 1e-3}, 3e-3);
    for (std::size_t i = 0; i < flops.size(); ++i)
      CHECK_THAT(seconds[i], WithinAbs(flops[i], 1e-9));
  }
  SECTION("a linear whose rows cost next to nothing keeps them") {
    const std::vector<double> seconds = ratios_by({1e-9, 1e-3}, 3e-3);
    CHECK(seconds[0] == 1);
    CHECK(seconds[1] < flops[1]);
  }
  SECTION("items that cost more are kept less often") {
    CHECK(ratios_by({2e-3, 1e-3}, 9e-3)[2] < flops[2]);
  }
}

TEST_CASE("seconds are pooled over probes", "[controller]") {
  VcasOptions options = budget_options();
  options.cost = "time";
  BudgetController controller(options, two_linears(), 1, 1000);
  MeasuredBatch batch = batch_of();
  for (const double seconds : {1.0, 3.0}) {  // a row, in dW of each and in dX of both
    batch.weight_seconds.assign(2, 64 * seconds);
    batch.item_seconds.assign(1, 64 * 1.5 * seconds);
    CHECK(controller.update({batch}).empty());
  }
  const nlohmann::json of_linear = controller.to_json()["seconds"];
  const double want[2][2] = {{2, 2}, {2, 1}};  // dX by its share in FLOPs
  for (std::size_t k = 0; k < 2; ++k)
    for (std::size_t i = 0; i < 2; ++i)
      CHECK_THAT(of_linear[k][i].get<double>(), WithinRel(want[k][i], 1e-12));
}

TEST_CASE("the water level stays finite where no ratios meet the budget, or all do",
          "[controller]") {
  VcasOptions options = budget_options();
  const bool none_meet = GENERATE(true, false);
  options.tau_act = options.tau_w = options.tau_f = none_meet ? 1e-9 : 1e9;
  ControlledModel model = two_linears();
  model.forward_ratio = none_meet ? 0.1 : 0;  // items that are dropped before alone spend too much
  BudgetController controller(options, model, 1, 1000);
  MeasuredBatch batch = batch_of();
  if (none_meet) batch.forward_score = batch.forward_norm = batch.item_score[0];
  for (int probe = 0; probe < 12; ++probe)
    CHECK(controller.update({batch}).ends_with("a larger method.forward_ratio adds less") ==
          none_meet);
  const double lambda = controller.to_json().at("lambda");
  CHECK(lambda > 0);
  CHECK(std::isfinite(lambda));
}

TEST_CASE("a trainer with a budget samples from its second step on", "[trainer][controller]") {
  TrainerOptions options = trainer_options();
  vcas_of(options).cost = GENERATE("flops", "time");
  options.micro_batch = GENERATE(0, 8);
  TrainerFixture f(options, 0.1);
  const std::vector<StepReport> reports = f.run(17);
  for (const std::int64_t step : {0, 2, 6, 14}) CHECK(reports[step].measured);
  for (const std::int64_t step : {1, 3, 13, 15}) CHECK_FALSE(reports[step].exact);
  CHECK(f.vcas().controller().probes() == 4);
}
