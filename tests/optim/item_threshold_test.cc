#include "optim/methods/item_threshold.h"

#include <cmath>
#include <limits>
#include <random>

#include "tests/optim/method_settings.h"
#include "tests/optim/trainer_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/watched_ops.h"

using namespace vcas;

namespace {

// Norms of 32 items: a few hold most of some batches, and all count in others.
std::vector<std::vector<double>> batches(int count, double drift) {
  std::mt19937 random(3);
  std::vector<std::vector<double>> out;
  for (int b = 0; b < count; ++b) {
    const double spread = std::uniform_real_distribution(0.2, 2.0)(random);
    std::lognormal_distribution<double> norm(0.0, spread);
    std::vector<double>& batch = out.emplace_back(32);
    for (double& score : batch) score = norm(random) * std::exp(drift * b);
  }
  return out;
}

double added_variance(const std::vector<double>& scores, double threshold) {
  double sum = 0;
  for (const double s : scores) sum += s * std::max(threshold - s, 0.0);  // (1 / p - 1) s^2
  return sum;
}

// The threshold of a batch at which it keeps `items`, by halving.
double threshold_of(const std::vector<double>& scores, double items) {
  double low = 1e-100, high = 1e100;
  for (int i = 0; i < 200; ++i) {
    const double middle = std::sqrt(low) * std::sqrt(high);
    double kept = 0;
    for (const double s : scores) kept += std::min(1.0, s / middle);
    (kept > items ? low : high) = middle;
  }
  return high;
}

}  // namespace

TEST_CASE("thresholds on norms keep the ratio's items in the mean, and add less variance",
          "[item_threshold]") {
  for (const double drift : {0.0, 0.002, -0.002, 0.1, -0.1}) {
    constexpr double kTarget = 12;
    ItemThreshold threshold;
    double kept = 0, variance = 0, of_fixed = 0, least = 32, most = 0;
    int steps = 0;
    for (const std::vector<double>& batch : batches(2000, drift)) {
      threshold.follow(batch, kTarget);
      const double now = threshold.kept(batch, 0);
      if (steps == 0) CHECK_THAT(now, WithinRel(kTarget, 1e-9));
      kept += now;
      least = std::min(least, now);
      most = std::max(most, now);
      const double scale = std::exp(-2 * drift * steps++);
      variance += scale * added_variance(batch, threshold.value());
      of_fixed += scale * added_variance(batch, threshold_of(batch, kTarget));
    }
    INFO("drift " << drift);
    const bool is_fast = std::abs(drift) > 0.01;
    CHECK_THAT(kept / steps, WithinRel(kTarget, is_fast ? 0.1 : 0.03));
    CHECK(least < 0.7 * kTarget);
    CHECK(most > 1.3 * kTarget);
    CHECK(variance < (is_fast ? 1.1 : 0.95) * of_fixed);
  }
}

TEST_CASE("a threshold is set by its first scores, and stays at scores that are not finite",
          "[item_threshold]") {
  ItemThreshold threshold;
  threshold.follow({0, 0}, 1);
  CHECK(threshold.value() == 0);
  threshold.follow({1, 1, 2, 8}, 2);  // 8 is kept, and (1 + 1 + 2) / 4 of the others
  CHECK(threshold.value() == 4);
  CHECK(threshold.kept({1, 1, 2, 8}, 0) == 2);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  threshold.follow({nan, 1, 1, 1}, 2);
  CHECK(threshold.value() == 4);
  CHECK(threshold.kept({nan, 1, 1, 2}, 0) == 2);
}

TEST_CASE("a threshold that keeps all rises to what is wanted, and stays where all are wanted",
          "[item_threshold]") {
  ItemThreshold threshold;
  threshold = nlohmann::json{1.0, 0.0, 0.0};
  threshold.follow({8, 8}, 2);
  CHECK(threshold.kept({8, 8}, 0) == 2);
  threshold.follow({8, 8}, 1.8);
  CHECK_THAT(threshold.kept({8, 8}, 0), WithinRel(1.8, 1e-12));
}

TEST_CASE("a threshold follows a trend at once, and batches that differ slowly",
          "[item_threshold]") {
  const auto step = [](const nlohmann::json& before, double score) {
    ItemThreshold threshold = before;
    threshold.follow({score, score}, 1);
    return threshold.value();
  };
  // Errors of one sign, and of both. Scores fell by a third, or rose by a half.
  const double low = 8.0 / 3;
  CHECK_THAT(step({8.0, -0.3, 0.3}, low), WithinRel(2 * low, 1e-12));
  CHECK_THAT(step({8.0, 0.05, 0.3}, low), WithinRel(8 * std::pow(2 * low / 8, 0.05), 1e-12));
  CHECK_THAT(step({8.0, 0.3, 0.3}, 8), WithinRel(16, 1e-12));
}

TEST_CASE("errors are shares of the larger sum, and a tenth of each counts", "[item_threshold]") {
  const auto errors = [](double target) {
    ItemThreshold threshold = nlohmann::json{8.0, 0.05, 0.3};
    threshold.follow({2, 2, 2, 2}, target);  // of which it keeps one
    const nlohmann::json state = threshold;
    CHECK_THAT(state[2].get<double>(), WithinRel(0.9 * 0.3 + 0.1 * 0.5, 1e-12));
    return state[1].get<double>();
  };
  CHECK_THAT(errors(2), WithinRel(0.9 * 0.05 - 0.1 * 0.5, 1e-12));
  CHECK_THAT(errors(0.5), WithinRel(0.9 * 0.05 + 0.1 * 0.5, 1e-12));
}

TEST_CASE("a gate keeps whole items, and at least one", "[item_threshold]") {
  CHECK(ItemThreshold::whole(0) == 1);
  CHECK(ItemThreshold::whole(1.4) == 1);
  CHECK(ItemThreshold::whole(1.6) == 2);
}

TEST_CASE("where the host looks at no norm, each step keeps the ratio's share",
          "[item_threshold]") {
  TrainerOptions options = TrainerFixture::defaults();
  options.method = read_method(R"("type": "vcas", "controller": "budget")");
  for (const char* device : {"cpu", "emu"}) {
    TrainerFixture f(options, 0, make_ops(device));
    CHECK(f.trainer->state()["method"]["state"].contains("thresholds") == (device[0] == 'c'));
  }
}

TEST_CASE("a gate keeps the sum of the probabilities, rounded", "[item_threshold][trainer]") {
  std::vector<std::vector<float>> scores;  // from the upper gate down
  std::vector<std::int64_t> kept;
  TrainerOptions options = TrainerFixture::defaults();
  options.method =
      read_method(R"("type": "vcas", "act_ratio": [0.4, 0.6], "kept_items": "by_norm")");
  TrainerFixture f(options, 0, watched_ops([&](const Draw& args, const std::string&) {
                     if (args.key.stream != Stream::kGate) return;
                     const auto* score = args.score.ptr<float>();
                     scores.emplace_back(score, score + args.score.elements());
                     kept.push_back(args.kept.elements());
                   }));
  int rounded_down = 0;
  for (std::int64_t step = 1; step <= 20; ++step) {
    scores.clear(), kept.clear();
    f.run(step);
    const nlohmann::json thresholds = f.trainer->state()["method"]["state"]["thresholds"];
    REQUIRE((kept.size() == 2 && thresholds.size() == 2));
    for (std::size_t i = 0; i < 2; ++i) {
      double sum = 0;
      for (const float score : scores[i])
        sum += std::min(1.0, static_cast<double>(score) / thresholds[1 - i][0].get<double>());
      CHECK(kept[i] == std::max(1L, std::lround(sum)));
      rounded_down += static_cast<double>(kept[i]) < sum;
    }
  }
  CHECK(rounded_down > 5);
}

TEST_CASE("scores with weights count as often", "[item_threshold]") {
  const nlohmann::json before = {4.0, 0.1, 0.3};
  ItemThreshold once = before, weighted = before;
  once.follow({1, 1, 2, 8, 8, 8}, 3);
  weighted.follow({1, 2, 8}, 3, {2, 1, 3});
  CHECK_THAT(weighted.value(), WithinRel(once.value(), 1e-12));
  CHECK_THAT(weighted.kept({1, 2, 8}, 0, {2, 1, 3}),
             WithinRel(once.kept({1, 1, 2, 8, 8, 8}, 0), 1e-12));
}

TEST_CASE("sampled passes of a probe keep what a step would, and leave the thresholds",
          "[item_threshold][trainer]") {
  struct Drawn {
    std::uint32_t gate;
    std::vector<float> scores;
    std::int64_t kept;
  };
  std::vector<Drawn> drawn;
  TrainerOptions options = TrainerFixture::defaults();
  options.method = read_method(R"("type": "vcas", "controller": "budget", "kept_items": "by_norm",
                                  "update_every": 2, "tau_act": 0.5)");
  TrainerFixture f(
      options, 0, watched_ops([&](const Draw& args, const std::string&) {
        if (args.key.stream != Stream::kGate) return;
        const auto* score = args.score.ptr<float>();
        drawn.push_back(
            {args.key.site, {score, score + args.score.elements()}, args.kept.elements()});
      }));
  const auto state = [&] { return f.trainer->state()["method"]["state"]; };
  f.run(18);  // of the probes at every second step the tenth has passes
  const nlohmann::json before = state();
  drawn.clear();
  f.run(19);
  CHECK(drawn.size() >= 2);
  for (const Drawn& draw : drawn) {
    ItemThreshold threshold = before["thresholds"][draw.gate];
    const std::vector<double> scores(draw.scores.begin(), draw.scores.end());
    const double target =
        before["act_ratio"][draw.gate].get<double>() * static_cast<double>(options.batch);
    threshold.follow(scores, target);
    CHECK(draw.kept == std::max(1L, std::lround(threshold.kept(scores, target))));
  }
  CHECK(state()["thresholds"] == before["thresholds"]);
}
