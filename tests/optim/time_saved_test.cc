#include "optim/time_saved.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/support/catch.h"

using namespace vcas;

TEST_CASE("a median and its interval are order statistics", "[time_saved]") {
  CHECK_FALSE(estimate_median({}));
  CHECK_FALSE(estimate_median({1, 2, 3, 4, 5}));
  const auto six = estimate_median({1, 2, 3, 5, 6, 60});
  REQUIRE(six);
  CHECK(six->low == 1);
  CHECK(six->middle == 4);
  CHECK(six->high == 60);
  // One value that the machine has spoilt moves nothing.
  const auto eleven = estimate_median({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1e9});
  REQUIRE(eleven);
  CHECK(eleven->low == 2);
  CHECK(eleven->middle == 6);
  CHECK(eleven->high == 10);
}

TEST_CASE("the interval of a median is the narrowest that holds it 19 times of 20",
          "[time_saved][law]") {
  // That the median of n values lies between those that have i others outside.
  const auto coverage = [](int n, int i) {
    double outside = 0, chance = std::exp2(-n);  // of k values below
    for (int k = 0; k <= i; ++k) {
      outside += 2 * chance;
      chance *= static_cast<double>(n - k) / (k + 1);
    }
    return 1 - outside;
  };
  CHECK_THAT(coverage(6, 0), WithinAbs(0.96875, 1e-12));
  for (int n = 6; n <= 60; ++n) {
    std::vector<double> places(static_cast<std::size_t>(n));
    std::iota(places.begin(), places.end(), 0);
    const auto estimate = estimate_median(places);
    const int low = static_cast<int>(estimate->low);
    INFO(n << " values, from " << low);
    CHECK(estimate->high == n - 1 - low);
    CHECK(coverage(n, low) >= 0.95);
    CHECK(coverage(n, low + 1) < 0.95);
  }
  std::vector<double> many(10001);  // 2^-10001 is no number
  std::iota(many.begin(), many.end(), 0);
  CHECK(estimate_median(many)->low == 4901);
}

TEST_CASE("the interval of a median holds it 19 times of 20", "[time_saved][law]") {
  std::mt19937 random(11);
  std::lognormal_distribution<double> skewed(0, 1);  // of median 1
  for (const std::size_t n : {6, 25, 150}) {
    constexpr int kTries = 2000;
    int held = 0;
    for (int i = 0; i < kTries; ++i) {
      std::vector<double> values(n);
      for (double& value : values) value = skewed(random);
      std::sort(values.begin(), values.end());
      const auto estimate = estimate_median(values);
      held += estimate->low <= 1 && 1 <= estimate->high;
    }
    INFO(n << " values: " << held);
    CHECK(held >= 0.94 * kTries);
    CHECK(held <= 0.99 * kTries);
  }
}

TEST_CASE("a saved share is told when it is known to three points and better than its size",
          "[time_saved]") {
  const auto known = [](double middle, double low, double high) {
    return is_known(Estimate{.middle = middle, .low = low, .high = high});
  };
  CHECK_FALSE(is_known(std::nullopt));
  CHECK(known(0.25, 0.23, 0.27));
  CHECK(known(-0.25, -0.27, -0.23));
  CHECK_FALSE(known(0.25, 0.21, 0.26));  // too wide
  CHECK(known(0.02, 0.01, 0.03));
  CHECK_FALSE(known(0.02, -0.001, 0.03));  // saved or lost?
  CHECK_FALSE(known(std::nan(""), std::nan(""), std::nan("")));
}
