#include "optim/methods/paper_controller.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "core/error.h"
#include "tests/optim/controller_settings.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// V_s is 10 in the probes below: V_act and V_w may be up to 1.
VcasOptions options_for_probes() {
  VcasOptions options{.controller = "paper"};
  options.tau_act = options.tau_w = 0.1;
  return options;
}

ProbeResult probe_of(double v_act, std::vector<double> v_w,
                     std::vector<std::vector<double>> gate_norms) {
  ProbeResult probe;
  probe.v_s = 10;
  probe.v_act = v_act;
  probe.v_s_weight.assign(v_w.size(), 10);
  probe.v_w = std::move(v_w);
  probe.item_norm = {gate_norms, gate_norms};
  return probe;
}

ControlledModel model_of(int gates, std::size_t linears) {
  return {.gates = gates, .linears = std::vector<ControlledModel::Linear>(linears, {0, 1.0, 1.0})};
}

const std::vector<double> kEqualNorms(1000, 2.5);

// The definition: the smallest of all subsets that reaches s of the whole.
double brute_force_top_mass(double s, const std::vector<double>& norms) {
  const std::size_t n = norms.size();
  double whole = 0;
  for (const double norm : norms) whole += norm;
  int fewest = static_cast<int>(n);
  for (unsigned subset = 1; subset < (1u << n); ++subset) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i)
      if (subset >> i & 1) sum += norms[i];
    if (sum >= s * whole) fewest = std::min(fewest, std::popcount(subset));
  }
  return fewest / static_cast<double>(n);
}

void check_same_bits(const PaperController& a, const PaperController& b) {
  const auto bits = [](const std::vector<double>& list) {
    std::vector<std::uint64_t> out;
    for (const double x : list) out.push_back(std::bit_cast<std::uint64_t>(x));
    return out;
  };
  CHECK(bits({a.s()}) == bits({b.s()}));
  CHECK(bits(a.act_ratio()) == bits(b.act_ratio()));
  CHECK(bits(a.weight_ratio()) == bits(b.weight_ratio()));
  CHECK(a.probes() == b.probes());
}

}  // namespace

TEST_CASE("top_mass is the smallest share of items that reaches s", "[controller]") {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> norms(1 + random() % 10);
    for (double& norm : norms) norm = static_cast<double>(random() % 9);  // exact sums, zeros, ties
    norms[0] += 1;
    // Eighths: s times the whole is exact, so that ties at the threshold count.
    for (int eighths = 0; eighths < 8; ++eighths)
      REQUIRE(top_mass(eighths / 8.0, norms) == brute_force_top_mass(eighths / 8.0, norms));
  }
}

TEST_CASE("norms at gates are those of all items, whatever the scores are", "[controller]") {
  MeasuredBatch batch;
  batch.item_score = {{3, 4, 0, 0}, {20, 0, 0, 1}};
  batch.tokens = {1, 4, 9, 16};
  const nlohmann::ordered_json norms = gate_norms({batch}, false);
  CHECK(norms["gate_norm"] == nlohmann::ordered_json({5.0, std::sqrt(401.0)}));
  CHECK(norms["gate_share"] == nlohmann::ordered_json({0.5, 0.25}));  // 20 of 21 is above 95 %
  MeasuredBatch scaled = batch;
  for (std::vector<double>& scores : scaled.item_score)
    for (std::size_t i = 0; i < scores.size(); ++i) scores[i] /= std::sqrt(scaled.tokens[i]);
  CHECK(gate_norms({scaled}, true) == norms);
  CHECK(gate_norms({batch, batch}, false) == norms);
  MeasuredBatch none = batch;
  none.item_score = {{0, 0, 0, 0}, {0, 0, 0, 0}};
  const nlohmann::ordered_json halves = gate_norms({batch, none}, false);
  CHECK(halves["gate_norm"][0] == std::sqrt(12.5));
  CHECK(halves["gate_share"][0] == 0.75);
}

TEST_CASE("the paper's controller moves the ratios of what is sampled alone", "[controller]") {
  VcasOptions options = options_for_probes();
  options.sample = GENERATE("items", "rows");
  const bool items = options.sample == "items";
  PaperController controller(options, model_of(1, 2), 1000);
  for (int probe = 0; probe < 5; ++probe)
    CHECK(controller.update(probe_of(0, {0.5, 2}, {kEqualNorms})).empty());
  CHECK((controller.s() < 1) == items);
  CHECK((controller.act_ratio()[0] < 1) == items);
  CHECK((controller.weight_ratio()[0] < 1) == !items);
  // A checkpoint's ratios of what is not sampled do not count.
  PaperController both(options_for_probes(), model_of(1, 2), 1000);
  for (int probe = 0; probe < 5; ++probe)
    CHECK(both.update(probe_of(0, {0.5, 2}, {kEqualNorms})).empty());
  controller.from_json(both.to_json());
  CHECK((controller.act_ratio() == both.act_ratio()) == items);
  CHECK((controller.weight_ratio() == both.weight_ratio()) == !items);
  CHECK((items ? controller.weight_ratio()[0] : controller.act_ratio()[0]) == 1);
}

TEST_CASE("top_mass at its edges", "[controller]") {
  CHECK(top_mass(0, {1, 1, 1, 1}) == 0.25);  // never nothing
  CHECK(top_mass(0.5, {1, 1, 1, 1}) == 0.5);
  CHECK(top_mass(0.51, {1, 1, 1, 1}) == 0.75);
  CHECK(top_mass(0.99, {0, 1000, 0, 1}) == 0.25);
  CHECK(top_mass(1, {0, 1000, 0, 1}) == 1);  // s = 1 is exact training
  CHECK(top_mass(0.5, {0, 0}) == 1);
  CHECK(top_mass(0.5, {1, kNan}) == 1);
  CHECK(top_mass(0.7, {1e-30, 2e-30, 3e-30}) == top_mass(0.7, {1e30, 2e30, 3e30}));
}

TEST_CASE("s follows the sign of V_act - tau V_s", "[controller]") {
  PaperController controller(options_for_probes(), model_of(1, 0), 1000);
  REQUIRE(controller.s() == 1);
  struct Row {
    double v_act, want;
  };
  for (const Row& row : {Row{0.99, 0.99},
                         {0.0, 0.98},
                         {1.0, 0.98},
                         {1.01, 0.99},
                         {50, 1.0},
                         {50, 1.0},
                         {0.5, 0.99}}) {
    CHECK(controller.update(probe_of(row.v_act, {}, {kEqualNorms})).empty());
    CHECK_THAT(controller.s(), WithinAbs(row.want, 1e-12));
    // Where norms are equal, s of the whole takes the share s of the items: at the new s.
    CHECK_THAT(controller.act_ratio()[0], WithinAbs(row.want, 1e-3));
  }
  CHECK(controller.probes() == 7);
}

TEST_CASE("s stays in [0, 1] and a gate keeps at least one item", "[controller]") {
  VcasOptions options = options_for_probes();
  options.s_step = 0.3;
  PaperController controller(options, model_of(1, 0), 1000);
  for (int i = 0; i < 5; ++i) CHECK(controller.update(probe_of(0, {}, {{1, 2, 3, 4}})).empty());
  CHECK(controller.s() == 0);
  CHECK(controller.act_ratio()[0] == 0.25);
  for (int i = 0; i < 5; ++i) CHECK(controller.update(probe_of(2, {}, {{1, 2, 3, 4}})).empty());
  CHECK(controller.s() == 1);
  CHECK(controller.act_ratio()[0] == 1);
}

TEST_CASE("item ratios are averaged over batches and never fall towards the output",
          "[controller]") {
  VcasOptions options = options_for_probes();
  options.s_step = 0.5;
  PaperController controller(options, model_of(4, 0), 1000);
  ProbeResult probe = probe_of(0, {}, {});
  probe.item_norm = {
      // the shares of the items that reach s = 0.5: 2/4, 1/4, 2/4, 1/4, then 1/4, 1/4, 2/4, 1/4
      {{1, 1, 1, 1}, {9, 1, 1, 1}, {1, 1, 1, 1}, {1, 0, 0, 0}},
      {{9, 1, 1, 1}, {9, 1, 1, 1}, {1, 1, 1, 1}, {1, 0, 0, 0}},
  };
  CHECK(controller.update(probe).empty());
  CHECK(controller.act_ratio() == std::vector<double>{0.375, 0.375, 0.5, 0.5});

  std::mt19937 random(11);
  for (int trial = 0; trial < 50; ++trial) {
    for (auto& batch : probe.item_norm)
      for (auto& gate : batch)
        for (double& norm : gate) norm = std::exp(random() % 7);
    probe.v_act = random() % 2 ? 0 : 2;
    CHECK(controller.update(probe).empty());
    CHECK(std::is_sorted(controller.act_ratio().begin(), controller.act_ratio().end()));
  }
}

TEST_CASE("smoothing mixes old and new item ratios", "[controller]") {
  VcasOptions options = options_for_probes();
  options.s_step = 0.5;
  options.ratio_smoothing = 0.6;
  PaperController controller(options, model_of(2, 0), 1000);
  CHECK(controller.update(probe_of(0, {}, {{9, 1, 1, 1}, {1, 1, 1, 1}})).empty());
  CHECK_THAT(controller.act_ratio()[0], WithinAbs(0.6 * 1 + 0.4 * 0.25, 1e-15));
  CHECK_THAT(controller.act_ratio()[1], WithinAbs(0.6 * 1 + 0.4 * 0.5, 1e-15));
  // Back to s = 1: the mixture moves towards 1.
  CHECK(controller.update(probe_of(2, {}, {{9, 1, 1, 1}, {1, 1, 1, 1}})).empty());
  CHECK_THAT(controller.act_ratio()[0], WithinAbs(0.6 * 0.7 + 0.4, 1e-15));
}

TEST_CASE("each weight ratio follows its own variances", "[controller]") {
  VcasOptions options = options_for_probes();
  options.weight_multiplier = 0.5;
  options.weight_ratio_min = 0.1;
  PaperController controller(options, model_of(0, 4), 1000);
  ProbeResult probe = probe_of(0, {0.99, 1.0, 0.0, 5.0}, {});
  CHECK(controller.update(probe).empty());
  CHECK(controller.weight_ratio() == std::vector<double>{0.5, 1, 0.5, 1});
  CHECK(controller.update(probe).empty());
  probe.v_w = {1.01, 0.99, 0.0, 0.0};
  CHECK(controller.update(probe).empty());
  CHECK(controller.weight_ratio() == std::vector<double>{0.5, 0.5, 0.125, 0.5});
  // Its own V_s, not another's.
  probe.v_s_weight = {100, 10, 10, 1};
  probe.v_w = {5, 5, 0, 0.5};
  CHECK(controller.update(probe).empty());
  CHECK(controller.weight_ratio() == std::vector<double>{0.25, 1, 0.1, 1});
}

TEST_CASE("items and rows have a tau of their own", "[controller]") {
  VcasOptions options = options_for_probes();
  options.tau_w = 2 * options.tau_act;
  PaperController controller(options, model_of(1, 1), 1000);
  CHECK(controller.update(probe_of(1.5, {1.5}, {kEqualNorms})).empty());
  CHECK(controller.s() == 1);
  CHECK(controller.weight_ratio()[0] < 1);
}

TEST_CASE("a probe is the mean of its batches", "[controller]") {
  const auto batch_of = [](std::vector<double> v_act, std::vector<double> v_w) {
    MeasuredBatch batch;
    batch.items = 2;
    batch.v_act = std::move(v_act);
    batch.v_w = std::move(v_w);
    batch.item_score = {{1, 1}};
    batch.gram = {{2, 0, 0, 2}, {0, 0, 0, 0}};
    return batch;
  };
  PaperController controller(options_for_probes(), model_of(1, 2), 1000);
  CHECK_THAT(controller.update({batch_of({0.2, 0.1}, {1, 0}), batch_of({0.4, 0.1}, {3, 0})}),
             ContainsSubstring("1 of 2 weight ratios stay"));
  const nlohmann::ordered_json mean = controller.measured();
  CHECK(mean["v_s"] == 4);
  CHECK_THAT(mean["v_act"].get<double>(), WithinRel(0.4, 1e-12));
  CHECK(mean["v_w"] == 2);
}

TEST_CASE("no probe takes the ratios further than their steps", "[controller]") {
  PaperController fastest(options_for_probes(), model_of(1, 1), 10000);
  PaperController random_walk(options_for_probes(), model_of(1, 1), 10000);
  std::mt19937 random(3);
  double largest_nu = 1;
  for (int n = 1; n <= 100; ++n) {
    CHECK(fastest.update(probe_of(0, {0}, {kEqualNorms})).empty());
    CHECK(random_walk
              .update(probe_of(random() % 3 ? 0 : 2, {random() % 3 ? 0.0 : 2.0}, {kEqualNorms}))
              .empty());
    largest_nu *= 0.95;
    CHECK_THAT(fastest.s(), WithinAbs(1 - 0.01 * n, 1e-12));
    CHECK_THAT(fastest.weight_ratio()[0], WithinAbs(largest_nu, 1e-12));
    CHECK(random_walk.s() >= 1 - 0.01 * n - 1e-12);
    CHECK(random_walk.weight_ratio()[0] >= largest_nu - 1e-12);
    CHECK(random_walk.s() <= 1);
    CHECK(random_walk.weight_ratio()[0] <= 1);
  }
}

TEST_CASE("with tau = 0 training stays exact", "[controller]") {
  VcasOptions options{.controller = "paper"};
  options.tau_act = options.tau_w = 0;
  PaperController controller(options, model_of(3, 2), 1000);
  for (const double v : {0.0, 1e-9, 0.0, 3.0, 0.0})
    CHECK(controller.update(probe_of(v, {v, 0}, {{1, 0, 5}, {0, 0, 0}, {1, 1, 1}})).empty());
  CHECK(controller.s() == 1);
  CHECK(controller.act_ratio() == std::vector<double>{1, 1, 1});
  CHECK(controller.weight_ratio() == std::vector<double>{1, 1});
}

TEST_CASE("a probe without a usable V_s changes nothing and says so", "[controller]") {
  PaperController controller(options_for_probes(), model_of(1, 2), 1000);
  CHECK(controller.update(probe_of(0, {0, 0}, {kEqualNorms})).empty());
  const double s = controller.s();
  const std::vector<double> rho = controller.act_ratio(), nu = controller.weight_ratio();

  SECTION("in total") {
    std::int64_t probes = controller.probes();
    for (const double v_s : {0.0, kInf, kNan}) {
      ProbeResult probe = probe_of(0, {0, 0}, {{1, 2}});
      probe.v_s = v_s;
      CHECK_THAT(controller.update(probe), ContainsSubstring("all keep ratios stay"));
      CHECK(controller.probes() == ++probes);
    }
    CHECK_THAT(controller.update(probe_of(kNan, {0, 0}, {{1, 2}})),
               ContainsSubstring("V_act = nan"));
    CHECK(controller.weight_ratio() == nu);
    CHECK(controller.s() == s);
    CHECK(controller.act_ratio() == rho);
  }
  SECTION("of one linear") {
    ProbeResult probe = probe_of(0, {0, 0}, {kEqualNorms});
    probe.v_s_weight[0] = 0;
    CHECK_THAT(controller.update(probe), ContainsSubstring("1 of 2 weight ratios stay"));
    CHECK(controller.weight_ratio()[0] == nu[0]);
    CHECK(controller.weight_ratio()[1] < nu[1]);
    probe.v_s_weight[0] = 10;
    probe.v_w[0] = kInf;
    CHECK_THAT(controller.update(probe), ContainsSubstring("1 of 2 weight ratios stay"));
    CHECK(controller.weight_ratio()[0] == nu[0]);
  }
}

TEST_CASE("probes are due every F steps", "[controller]") {
  VcasOptions options{.controller = "paper"};
  options.probe = GENERATE("separate", "in_place");
  const auto update_every = [&](std::int64_t total) { return options.probe_interval(total); };
  CHECK(update_every(36816) == 500);
  CHECK(update_every(5000) == 100);
  CHECK(update_every(99) == 10);
  CHECK(update_every(0) == 10);
  SECTION("seldom enough for their repeats") {
    options.repeats = 3;
    CHECK(update_every(99) == 15);
    CHECK(update_every(5000) == 100);
  }
  SECTION("as given") {
    options.update_every = 7;
    const PaperController controller(options, model_of(1, 1), 5000);
    for (std::int64_t step = 0; step < 30; ++step)
      CHECK(controller.probe_due(step) == (step % 7 == 0));
  }
}

TEST_CASE("given ratios are fixed", "[controller]") {
  VcasOptions options{.controller = "paper"};
  options.act_ratio = {0.25, 0.5, 0.5};
  options.weight_ratio = {0.125};
  const Controller controller(options, model_of(3, 2));
  CHECK_FALSE(controller.adapts());
  CHECK_FALSE(controller.probe_due(0));
  CHECK(controller.act_ratio() == options.act_ratio);
  CHECK(controller.weight_ratio() == std::vector<double>{0.125, 0.125});
  SECTION("one kind alone leaves the other exact") {
    options.weight_ratio.clear();
    CHECK(Controller(options, model_of(3, 2)).weight_ratio() == std::vector<double>{1, 1});
  }
  SECTION("and must fit the model") {
    CHECK_THROWS_WITH(Controller(options, model_of(4, 2)),
                      "method.act_ratio has 3 ratios, but the model has 4 sampling gates");
  }
}

TEST_CASE("controller settings are checked", "[controller]") {
  CHECK(config_error(R"({"act_ratio": [0.1, 0.1, 1], "update_every": 3})").empty());
  CHECK_THAT(config_error(R"({"act_ratio": [0.5, 0.4]})"),
             ContainsSubstring("act_ratio must not decrease from input to output"));
  CHECK_THAT(config_error(R"({"act_ratio": [0]})"), ContainsSubstring("must be above 0"));
  CHECK_THAT(
      config_error(R"({"controller": "paper", "update_every": 3, "repeats": 3})"),
      ContainsSubstring("update_every must be above 3, the exact steps of a probe in place"));
  CHECK(config_error(R"({"update_every": 2, "repeats": 3, "probe": "separate"})").empty());
  CHECK_THAT(config_error(R"({"repeats": 1})"), ContainsSubstring("must be at least 2"));
  for (const char* timed : {R"("auto_exact": true)", R"("cost": "time")"})
    CHECK_THAT(config_error(fmt::format(R"({{"probe": "separate", {}}})", timed)),
               ContainsSubstring("must be in_place where seconds are measured"));
}

TEST_CASE("the controller's state goes through text bit by bit", "[controller]") {
  VcasOptions options = options_for_probes();
  options.ratio_smoothing = 0.6;
  PaperController controller(options, model_of(3, 2), 1000);
  const ProbeResult probe = probe_of(0, {0, 2}, {{1, 2.5, 1.0 / 3}, {1, 1e-9, 1e9}, kEqualNorms});
  for (int i = 0; i < 17; ++i) CHECK(controller.update(probe).empty());

  PaperController copy(options, model_of(3, 2), 1000);
  copy.from_json(nlohmann::json::parse(controller.to_json().dump()));
  check_same_bits(controller, copy);
  CHECK(controller.update(probe) == copy.update(probe));
  check_same_bits(controller, copy);

  SECTION("a state of another model is refused") {
    const nlohmann::json state = controller.to_json();
    CHECK_THROWS_WITH(PaperController(options, model_of(4, 2), 1000).from_json(state),
                      "the state of the VCAS controller has 3 item and 2 weight ratios, the model "
                      "4 and 2");
    CHECK_THROWS_WITH(copy.from_json(nlohmann::json::object()),
                      "the state of the VCAS controller: [json.exception.out_of_range.403] key 's' "
                      "not found");
    check_same_bits(controller, copy);
  }
  SECTION("fixed ratios win over a state") {
    options.act_ratio = {0.5};
    const auto pinned = make_controller(options, model_of(3, 2), 0, 1000);
    pinned->from_json(controller.to_json());
    CHECK(pinned->act_ratio() == std::vector<double>{0.5, 0.5, 0.5});
  }
  SECTION("a controller that adapts does not inherit fixed ratios") {
    VcasOptions fixed = options;
    fixed.act_ratio = {0.5};
    copy.from_json(make_controller(fixed, model_of(3, 2), 0, 1000)->to_json());
    check_same_bits(controller, copy);
  }
}
