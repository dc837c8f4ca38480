// y = max(x, 0). Backward reads the output, which the next layer keeps anyway.
#include "layers/layer.h"

namespace vcas {

namespace {

class ReluLayer final : public Layer {
 public:
  explicit ReluLayer(const LayerConfig&) {}

  NodePlan plan(const PlanInput& in) const override {
    check_inputs("relu", in, {in.dtype});
    NodePlan plan;
    plan.output = in.inputs[0];
    plan.saved_output = true;
    plan.coupling = RowCoupling::kRows;
    plan.in_place = true;
    plan.writes_norms = true;
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.ops.run(ReluForward{.y = io.output, .y_norm = io.output_norm, .x = io.inputs[0]});
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    if (!io.dx[0]) return;
    exec.ops.run(ReluBackward{.dx = io.dx[0],
                              .dx_norm = io.dx_norm,
                              .dy = io.dy,
                              .saved_full = io.output_full,
                              .row = io.rows.of(io.input_specs[0].layout).row});
  }
};

VCAS_REGISTER_LAYER("relu", ReluLayer);

}  // namespace

}  // namespace vcas
