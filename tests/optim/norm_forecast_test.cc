#include "optim/methods/norm_forecast.h"

#include <cmath>
#include <random>

#include "core/error.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

double forecast(const NormForecast& known, double norm) { return known.of({norm})[0]; }

}  // namespace

TEST_CASE("norms of which nothing is known are forecast to stay, in octaves", "[forecast]") {
  const NormForecast none(100);
  for (const double norm : {1e-9, 0.3, 1.1, 700.0})
    CHECK_THAT(std::log2(forecast(none, norm) / norm), WithinAbs(0, 0.5));
  CHECK(forecast(none, 1.0) == forecast(none, 1.9));
  CHECK(forecast(none, 0) < forecast(none, 1e-12));
  // The outer octaves have no ends.
  CHECK_THAT(forecast(none, 0), WithinRel(std::exp2(-47.5)));
  CHECK_THAT(forecast(none, 1e-18), WithinRel(std::exp2(-47.5)));
  CHECK_THAT(forecast(none, 1e9), WithinRel(std::exp2(15.5)));
}

TEST_CASE("octaves whose norms would change places share their mean square", "[forecast]") {
  NormForecast known(1e12);
  known.learn(1, 4, 300);
  known.learn(2, 2, 100);
  // Each octave has five more items, whose norms stay: of squares 2 and 8.
  const double square = (300 * 16 + 5 * 2 + 100 * 4 + 5 * 8) / 410.0;
  CHECK_THAT(forecast(known, 1), WithinRel(std::sqrt(square), 1e-9));
  CHECK_THAT(forecast(known, 2), WithinRel(std::sqrt(square), 1e-9));
}

TEST_CASE("a forecast is the root mean square of what norms became, by weight", "[forecast]") {
  NormForecast known(1e9);
  std::mt19937 random(1);
  for (int i = 0; i < 40000; ++i) {
    const bool grown = random() % 10 == 0;
    if (grown && random() % 4 != 0) continue;  // those that are seen stand for four
    known.learn(0.1, grown ? 8 : 0.1, grown ? 4 : 1);
  }
  CHECK_THAT(forecast(known, 0.1), WithinRel(std::sqrt(0.1 * 64 + 0.9 * 0.01), 0.05));
  // A larger norm is not expected to become less than a smaller one.
  CHECK(forecast(known, 1.0) == forecast(known, 0.1));
  CHECK(forecast(known, 100.0) > 64);
}

TEST_CASE("a forecast forgets half in its half-life", "[forecast]") {
  NormForecast known(1000);
  for (int i = 0; i < 50000; ++i) known.learn(1, 4, 1);
  for (int i = 0; i < 1000; ++i) known.learn(1, 0, 1);
  CHECK_THAT(forecast(known, 1), WithinRel(std::sqrt(8), 0.01));
  NormForecast heavy(1);
  heavy.learn(1, 3, 1);
  heavy.learn(8, 8, 5);             // stands for five half-lives
  constexpr std::size_t kOne = 48;  // the octave of 1
  CHECK(heavy.state().at("items").at(kOne) == std::exp2(-5));
  CHECK(heavy.state().at("squares").at(kOne) == 9 * std::exp2(-5));
}

TEST_CASE("the state of a forecast", "[forecast]") {
  NormForecast known(10), copy(10);
  for (int i = 0; i < 5; ++i) known.learn(0.3 * i, i, 1.5);
  copy.restore(nlohmann::json::parse(known.state().dump()));
  CHECK(copy.state() == known.state());
  CHECK(copy.of({0.2, 1}) == known.of({0.2, 1}));
  CHECK_THROWS_WITH(copy.restore({{"items", {1.0}}, {"squares", {1.0}}}),
                    "the state of SampleF has not 64 octaves of norms");
  CHECK_THROWS_WITH(copy.restore(nlohmann::json::object()),
                    ContainsSubstring("the state of SampleF: "));
  CHECK(copy.state() == known.state());
}
