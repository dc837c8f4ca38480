// Whether sampled gradients of a whole model are the exact ones, at ratios of one and in the mean.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/fewer_cases.h"
#include "tests/support/model_fixture.h"

namespace vcas {

// A pass that keeps all has the bits of an exact one, and changes nothing for the next.
inline void check_ratios_of_one(ModelFixture& f) {
  Exec exec = f.forward();
  const auto exact = f.gradient(exec, f.context(SamplingMode::kExact, 1, 1));
  CHECK(f.gradient(exec, f.context(SamplingMode::kItemsAndRows, 1, 1)) == exact);
  CHECK(f.gradient(exec, f.context(SamplingMode::kExact, 1, 1)) == exact);
  CHECK(std::ranges::any_of(exact, [](double g) { return g != 0; }));
}

struct TensorError {
  std::string name;
  double mean, standard_error;  // of the sampled minus the exact gradient, in one direction
  double rounding;              // by which the mean may be off where all draws agree
};

// Each tensor's error is looked at along its exact gradient, where a wrong scale shows, and along
// two random directions. Both gradients are sums over rows, with the rounding of
// c eps sqrt(rows) of themselves that every operation is allowed. What is 0 has a rounding too.
inline std::vector<TensorError> mean_errors(ModelFixture& f, const PassSettings& context,
                                            int draws) {
  Exec exec = f.forward();
  const auto exact = f.gradient(exec, f.context(SamplingMode::kExact, 1, 1));
  constexpr int kDirections = 3;
  const auto& list = f.model->graph.parameters().list();
  std::vector<double> direction(exact.size() * kDirections);
  const PhiloxAddress address = philox_address({1, Stream::kData, 1, 0, 0});
  for (std::size_t i = 0; i < exact.size(); ++i) {
    direction[i * kDirections] = exact[i];
    for (std::size_t d = 1; d < kDirections; ++d)
      direction[i * kDirections + d] = philox_uniform(address, i * kDirections + d) < 0.5f ? -1 : 1;
  }
  std::vector<double> sum(list.size() * kDirections), squares(sum.size());
  for (int draw = 0; draw < draws; ++draw) {
    Exec at = f.exec(static_cast<std::uint64_t>(draw));
    const auto sampled = f.gradient(at, context);
    for (std::size_t p = 0; p < list.size(); ++p) {
      const auto [begin, end] = f.range(list[p]);
      for (std::size_t d = 0; d < kDirections; ++d) {
        double dot = 0;
        for (std::size_t i = begin; i < end; ++i)
          dot += (sampled[i] - exact[i]) * direction[i * kDirections + d];
        sum[p * kDirections + d] += dot;
        squares[p * kDirections + d] += dot * dot;
      }
    }
  }
  constexpr double kRows = 64;  // of a batch, at most
  const double eps = f.model->graph.dtype() == DType::kF64 ? 0x1p-52 : 0x1p-23;
  const double unit = 8 * eps * std::sqrt(kRows);
  std::vector<TensorError> errors;
  for (std::size_t e = 0; e < sum.size(); ++e) {
    const Parameter& parameter = list[e / kDirections];
    const auto [begin, end] = f.range(parameter);
    double exact_squares = 0, direction_squares = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const double along = direction[i * kDirections + e % kDirections];
      exact_squares += exact[i] * exact[i];
      direction_squares += along * along;
    }
    const double mean = sum[e] / draws, variance = squares[e] / draws - mean * mean;
    errors.push_back({parameter.name, mean, std::sqrt(std::max(variance, 0.0) / draws),
                      unit * std::sqrt(exact_squares * direction_squares) + 1e-12});
  }
  return errors;
}

inline bool within_five(const TensorError& error) {
  return std::abs(error.mean) <= 5 * error.standard_error + error.rounding;
}

// Tensors whose names begin with `blocks` are below a gate: draws move them.
inline void check_mean(ModelFixture& f, const PassSettings& context, const std::string& blocks) {
  for (const TensorError& error : mean_errors(f, context, repetitions(4096))) {
    INFO(error.name << ": " << error.mean << " of standard error " << error.standard_error
                    << ", rounding " << error.rounding);
    CHECK(within_five(error));
    if (error.name.starts_with(blocks)) CHECK(error.standard_error > 0);
  }
}

// For a model of two gates.
inline void check_mean(ModelFixture& f, const std::string& blocks) {
  PassSettings context = f.context(SamplingMode::kItemsAndRows, 1, 0.4);
  context.sampling.ratios.act = {0.4, 0.7};
  check_mean(f, context, blocks);
}

}  // namespace vcas
