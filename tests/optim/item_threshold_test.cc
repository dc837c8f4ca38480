#include "optim/methods/item_threshold.h"

#include <cmath>
#include <limits>
#include <random>

#include "tests/support/catch.h"

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
  double low = 1e-9, high = 1e9;
  for (int i = 0; i < 200; ++i) {
    const double middle = std::sqrt(low * high);
    double kept = 0;
    for (const double s : scores) kept += std::min(1.0, s / middle);
    (kept > items ? low : high) = middle;
  }
  return high;
}

}  // namespace

TEST_CASE("thresholds on norms keep the ratio's items in the mean, and add less variance",
          "[item_threshold]") {
  for (const double drift : {0.0, 0.002, -0.002}) {
    constexpr double kTarget = 12;
    ItemThreshold threshold;
    double kept = 0, variance = 0, of_fixed = 0, least = 32, most = 0;
    int steps = 0;
    for (const std::vector<double>& batch : batches(2000, drift)) {
      const double now = threshold.kept(batch, kTarget);
      if (steps++ == 0) {
        CHECK(now == kTarget);
      } else {
        kept += now;
        least = std::min(least, now);
        most = std::max(most, now);
        const double scale = std::exp(-2 * drift * (steps - 1));
        variance += scale * added_variance(batch, threshold.value());
        of_fixed += scale * added_variance(batch, threshold_of(batch, kTarget));
      }
      threshold.follow(batch, kTarget);
    }
    INFO("drift " << drift);
    // A threshold that moves by 0.05 of what is missing lags 20 steps behind.
    CHECK(kept / (steps - 1) == Approx(kTarget).epsilon(0.02 + 20 * std::abs(drift)));
    CHECK(least < 0.7 * kTarget);
    CHECK(most > 1.3 * kTarget);
    CHECK(variance < 0.95 * of_fixed);
  }
}

TEST_CASE("a threshold is set by its first scores, and stays at scores that are not finite",
          "[item_threshold]") {
  ItemThreshold threshold;
  threshold.follow({0, 0}, 1);
  CHECK(threshold.value() == 0);
  threshold.follow({1, 1, 2, 8}, 2);  // 8 is kept, and (1 + 1 + 2) / 4 of the others
  CHECK(threshold.value() == Approx(4));
  CHECK(threshold.kept({1, 1, 2, 8}, 0) == Approx(2));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  threshold.follow({nan, 1, 1, 1}, 2);
  CHECK(threshold.value() == Approx(4));
  CHECK(threshold.kept({nan, 1, 1, 2}, 0) == Approx(2));
}

TEST_CASE("a threshold that keeps all rises slowly, and stays where all are wanted",
          "[item_threshold]") {
  ItemThreshold threshold;
  threshold.set(1);
  threshold.follow({8, 8}, 2);
  CHECK(threshold.value() == 1);
  threshold.follow({8, 8}, 0.5);
  CHECK_THAT(threshold.value(), WithinRel(std::exp(0.05), 1e-12));
}
