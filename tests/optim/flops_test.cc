#include "optim/flops.h"

#include "core/error.h"
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

TEST_CASE("an interval with a separate probe costs what the paper's formula says", "[flops]") {
  const std::vector<double> rho = {0.2, 0.6}, nu = {0.5, 0.25, 1, 0.75};
  const int f = 100, m = 2;
  FormulaFlops flops({{0, 1}, {0, 1}, {1, 1}, {1, 1}});
  flops.add_separate_probe(m, rho);
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
  flops.add_in_place_probe(2, 0.01, rho);
  for (int i = 0; i < 8; ++i) flops.add_sampled_step(rho, {0.5, 0.5});
  const double cost = 2 * 3 + (2 * 0.01 + 4 * 1.01 * 0.7) + 8 * (1 + 0.7 + 0.35);
  CHECK_THAT(flops.saved(), WithinAbs(1 - cost / 30, 1e-12));
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
