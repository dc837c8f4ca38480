// Weights of the terms of a loss: its third input, f32 of width 1. The graph or the batch may lack
// it.
#pragma once

#include "layers/layer.h"

namespace vcas {

// Throws Error(kBadConfig) unless the inputs are these:
//   values   of the compute dtype
//   answers  of the type `answer`
//   weights  one for each row of the values; may be missing
inline void check_loss_inputs(const char* kind, const PlanInput& in, DType answer) {
  if (in.inputs.size() < 3) return check_inputs(kind, in, {in.dtype, answer});
  check_inputs(kind, in, {in.dtype, answer, DType::kF32});
  const ValueSpec &values = in.inputs[0], &weight = in.inputs[2];
  if (weight.width != 1 || weight.layout != values.layout)
    throw Error(ExitCode::kBadConfig,
                std::string(kind) + ": weights are one number a row of the loss, got width " +
                    std::to_string(weight.width) + " in " + weight.layout.text() +
                    " rows an item, and the loss has " + values.layout.text());
}

// The inputs that backward reads: all.
inline std::vector<int> loss_inputs(const PlanInput& in) {
  return in.inputs.size() < 3 ? std::vector{0, 1} : std::vector{0, 1, 2};
}

// [rows of the loss]; empty: all 1.
inline Tensor loss_weight(std::span<const Tensor> inputs) {
  return inputs.size() < 3 ? Tensor{} : as_vector(inputs[2]);
}

}  // namespace vcas
