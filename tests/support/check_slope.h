// Whether the gradient of a whole model is the slope of its loss.
#pragma once

#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/model_fixture.h"

namespace vcas {

// Five or six elements of each parameter of an f64 model, by central differences, within
// `absolute` + 1e-6 of the gradient.
inline void check_slope(ModelFixture& f, double absolute) {
  Exec exec = f.exec();
  f.mean_loss(exec);
  const std::vector<double> gradient = f.gradient(exec, f.context(SamplingMode::kExact, 1, 1));
  const Parameters& parameters = f.model->graph.parameters();
  for (const Parameter& parameter : parameters.list()) {
    const auto [begin, end] = f.range(parameter);
    for (std::size_t i = begin; i < end; i += 1 + (end - begin) / 5) {
      double& value = parameters.values().ptr<double>()[i];
      const double old = value, h = 3e-6;
      value = old + h;
      const double above = f.mean_loss(exec);
      value = old - h;
      const double below = f.mean_loss(exec);
      value = old;
      INFO(parameter.name << " element " << i - begin);
      CHECK(std::abs((above - below) / (2 * h) - gradient[i]) <=
            absolute + 1e-6 * std::abs(gradient[i]));
    }
  }
}

}  // namespace vcas
