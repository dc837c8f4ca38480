// Whether the mean of many sampled gradients of a whole model is the exact one.
#pragma once

#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/model_fixture.h"

namespace vcas {

// Each tensor's error along its exact gradient, where a wrong scale shows.
// The model has two gates. Tensors whose names begin with `blocks` are below one.
inline void check_mean(ModelFixture& f, const std::string& blocks) {
  Exec exec = f.exec();
  f.model->graph.forward(exec);
  const auto exact = f.gradient(exec, f.context(SamplingMode::kExact, 1, 1));
  PassSettings context = f.context(SamplingMode::kItemsAndRows, 1, 0.4);
  context.sampling.ratios.act = {0.4, 0.7};
  constexpr int kDraws = 2048;
  const auto& list = f.model->graph.parameters().list();
  std::vector<double> sum(list.size()), squares(list.size());
  for (int draw = 0; draw < kDraws; ++draw) {
    Exec at = f.exec(static_cast<std::uint64_t>(draw));
    const auto sampled = f.gradient(at, context);
    for (std::size_t p = 0; p < list.size(); ++p) {
      const auto [begin, end] = f.range(list[p]);
      double along = 0;
      for (std::size_t i = begin; i < end; ++i) along += (sampled[i] - exact[i]) * exact[i];
      sum[p] += along;
      squares[p] += along * along;
    }
  }
  for (std::size_t p = 0; p < list.size(); ++p) {
    const double mean = sum[p] / kDraws, variance = squares[p] / kDraws - mean * mean;
    INFO(list[p].name << " " << mean << " of standard error " << std::sqrt(variance / kDraws));
    CHECK(std::abs(mean) <= 5 * std::sqrt(variance / kDraws) + 1e-12);
    if (list[p].name.starts_with(blocks)) CHECK(variance > 0);
  }
}

}  // namespace vcas
