#include "layers/backward_hooks.h"

namespace vcas {

void BackwardHooks::begin(Exec&) { biases_ = {}; }

std::span<const RowSets> BackwardHooks::at_gate(Exec&, const GateSite&, Gradient&,
                                                const RowSets& rows) {
  return {&rows, 1};
}

void BackwardHooks::weight_gradient(Exec& exec, const WeightUse& use) {
  bias_gradient(exec, use);
  if (!use.dweight) return;
  const auto multiply = [&] {
    exec.ops.run(LinearBackwardWeight{.dweight = use.dweight,
                                      .dy = use.dy,
                                      .x_full = use.x_full,
                                      .patches = use.patches,
                                      .row = use.rows.row,
                                      .accumulate = use.accumulate});
  };
  if (use.site < 0)
    multiply();
  else
    exec.ops.beside(std::ref(multiply));
}

void BackwardHooks::bias_gradient(Exec& exec, const WeightUse& use) {
  if (!use.dbias) return;
  const ColumnSum bias{.sum = use.dbias, .x = use.dy, .accumulate = use.accumulate};
  use.site < 0 ? exec.ops.run(bias) : biases_.add(bias);
}

void BackwardHooks::flush(Exec& exec) {
  if (biases_.size() > 0) exec.ops.run(biases_);
  biases_ = {};
}

std::size_t BackwardHooks::scratch_bytes(std::int64_t max_rows) {
  const auto rows = static_cast<std::size_t>(max_rows);
  return 3 * Arena::round_up(rows * sizeof(double)) + Arena::round_up(rows * sizeof(std::int32_t)) +
         Arena::kAlignment;
}

}  // namespace vcas
