// The loss of a regression: (prediction - target)^2 of each item.
#include "layers/loss_weight.h"

namespace vcas {

namespace {

class SquaredError final : public Layer {
 public:
  explicit SquaredError(const LayerConfig&) {}

  NodePlan plan(const PlanInput& in) const override {
    check_loss_inputs("squared_error", in, DType::kF32);
    for (const ValueSpec& input : in.inputs.first(2))
      if (input.width != 1 || input.layout != Layout::items(1))
        throw Error(ExitCode::kBadConfig,
                    "squared_error: prediction and target are one number an item, got width " +
                        std::to_string(input.width) + " in " + input.layout.text() + " rows");
    NodePlan plan;
    plan.output = {1, Layout::items(1), statistics_dtype(in.dtype)};
    plan.saved_inputs = loss_inputs(in);
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.ops.run(SquaredErrorForward{.loss = as_vector(io.output),
                                     .prediction = as_vector(io.inputs[0]),
                                     .target = as_vector(io.inputs[1]),
                                     .weight = loss_weight(io.inputs)});
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    if (!io.dx[0]) return;
    exec.ops.run(SquaredErrorBackward{.dprediction = as_vector(io.dx[0]),
                                      .prediction = as_vector(io.inputs_full[0]),
                                      .target = as_vector(io.inputs_full[1]),
                                      .weight = loss_weight(io.inputs_full),
                                      .scale = io.loss_scale});
  }
};

VCAS_REGISTER_LAYER("squared_error", SquaredError);

}  // namespace

}  // namespace vcas
