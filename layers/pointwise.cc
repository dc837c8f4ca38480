// Activations: layers that are an operation of one number (kernels/ops/pointwise.h).
#include "layers/layer.h"

namespace vcas {

namespace {

template <class P>
class Pointwise final : public Layer {
 public:
  explicit Pointwise(const LayerConfig&) {}

  NodePlan plan(const PlanInput& in) const override {
    check_inputs(P::kLayer, in, {in.dtype});
    NodePlan plan;
    plan.output = in.inputs[0];
    if (P::kSlopeOfOutput)
      plan.saved_output = true;  // which the next layer mostly keeps anyway
    else
      plan.saved_inputs = {0};
    plan.coupling = RowCoupling::kRows;
    plan.in_place = true;
    plan.writes_norms = true;
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.ops.run(PointwiseForward<P>{.y = io.output, .y_norm = io.output_norm, .x = io.inputs[0]});
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    if (!io.dx[0]) return;
    exec.ops.run(
        PointwiseBackward<P>{.dx = io.dx[0],
                             .dx_norm = io.dx_norm,
                             .dy = io.dy,
                             .saved_full = P::kSlopeOfOutput ? io.output_full : io.inputs_full[0],
                             .row = io.rows.of(io.input_specs[0].layout).row});
  }
};

#define VCAS_REGISTER_ACTIVATION(X, P) \
  using P##Layer = Pointwise<P>;       \
  VCAS_REGISTER_LAYER(P::kLayer, P##Layer);
VCAS_FOR_EACH_POINTWISE(VCAS_REGISTER_ACTIVATION, )
#undef VCAS_REGISTER_ACTIVATION

}  // namespace

}  // namespace vcas
