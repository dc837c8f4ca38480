// What all normalisations share.
#pragma once

#include "layers/layer.h"

namespace vcas {

// The setting eps, 1e-5 if left out. Throws Error(kBadConfig) unless it is positive.
inline double read_norm_eps(const LayerConfig& config) {
  const auto eps = config.get<double>("eps", 1e-5);
  if (!(eps > 0)) config.fail("eps", "must be positive, got " + std::to_string(eps));
  return eps;
}

// The output is like `x`. Parameters: weight, `gain` at first, and bias, both [width].
// Saves two tensors of `statistic`: the mean or center, and 1 / standard deviation.
inline NodePlan norm_plan(const ValueSpec& x, const SavedSpec& statistic, double gain) {
  NodePlan plan;
  plan.output = x;
  plan.parameters = {{"weight", {x.width}, {Initializer::Kind::kConstant, gain}, false},
                     {"bias", {x.width}, {}, false}};
  plan.saved = {statistic, statistic};
  plan.saved_inputs = {0};
  plan.accumulates = true;
  plan.writes_gradients = true;
  plan.writes_norms = true;
  plan.scratch_bytes =
      Arena::round_up(static_cast<std::size_t>(x.width) * dtype_bytes(statistic.dtype));
  return plan;
}

inline bool wants_nothing(const BackwardIo& io) {
  return !io.dx[0] && !io.gradients[0] && !io.gradients[1];
}

// What the backward of each is given, but for its statistics and rows.
template <class Backward>
Backward norm_backward(Exec& exec, const BackwardIo& io) {
  // The operation writes both gradients; one that is not wanted goes nowhere.
  const auto wanted = [&](std::size_t i) {
    const Tensor &own = io.gradients[i], &other = io.gradients[1 - i];
    return own || !other ? own : exec.scratch.take(other.dtype, other.shape);
  };
  return {.dx = io.dx[0],
          .added = io.added[0],
          .dx_norm = io.dx_norm,
          .dgamma = wanted(0),
          .dbeta = wanted(1),
          .dy = io.dy,
          .x_full = io.inputs_full[0],
          .gamma = io.parameters[0],
          .accumulate_parameters = io.gradients.adds};
}

}  // namespace vcas
