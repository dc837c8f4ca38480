// y = tanh(x).
#include "layers/layer.h"

namespace vcas {

namespace {

class TanhLayer final : public Layer {
 public:
  explicit TanhLayer(const LayerConfig&) {}

  NodePlan plan(const PlanInput& in) const override {
    check_inputs("tanh", in, {in.dtype});
    NodePlan plan;
    plan.output = in.inputs[0];
    plan.saved_output = true;
    plan.coupling = RowCoupling::kRows;
    plan.in_place = true;
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.ops.run(TanhForward{.y = io.output, .x = io.inputs[0]});
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    if (!io.dx[0]) return;
    exec.ops.run(TanhBackward{.dx = io.dx[0],
                              .dy = io.dy,
                              .saved_full = io.output_full,
                              .row = io.rows.of(io.input_specs[0].layout).row});
  }
};

VCAS_REGISTER_LAYER("tanh", TanhLayer);

}  // namespace

}  // namespace vcas
