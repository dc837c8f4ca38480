// y = x Phi(x), Phi the standard normal distribution function (the erf form).
#include "layers/layer.h"

namespace vcas {

namespace {

class GeluLayer final : public Layer {
 public:
  explicit GeluLayer(const LayerConfig&) {}

  NodePlan plan(const PlanInput& in) const override {
    check_inputs("gelu", in, {in.dtype});
    NodePlan plan;
    plan.output = in.inputs[0];
    plan.saved_inputs = {0};
    plan.coupling = RowCoupling::kRows;
    plan.in_place = true;
    plan.writes_norms = true;
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.ops.run(GeluForward{.y = io.output, .y_norm = io.output_norm, .x = io.inputs[0]});
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    if (!io.dx[0]) return;
    exec.ops.run(GeluBackward{.dx = io.dx[0],
                              .dx_norm = io.dx_norm,
                              .dy = io.dy,
                              .saved_full = io.inputs_full[0],
                              .row = io.rows.of(io.input_specs[0].layout).row});
  }
};

VCAS_REGISTER_LAYER("gelu", GeluLayer);

}  // namespace

}  // namespace vcas
