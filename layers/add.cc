// y = a + b: the residual connection.
#include "layers/layer.h"

namespace vcas {

namespace {

class AddLayer final : public Layer {
 public:
  explicit AddLayer(const LayerConfig&) {}

  NodePlan plan(const PlanInput& in) const override {
    check_sum("add", in);
    NodePlan plan;
    plan.output = in.inputs[0];
    plan.coupling = RowCoupling::kRows;
    plan.passes_gradient = {0, 1};
    plan.is_sum = true;
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    if (io.leaves_sum)
      exec.sum = Dropout{.y = io.output, .x = io.inputs[0], .residual = io.inputs[1]};
    else
      exec.ops.run(Add{.y = io.output, .a = io.inputs[0], .b = io.inputs[1]});
  }

  void backward(Exec&, const BackwardIo&) const override {
    throw InternalError("add: the graph passes the gradient on by itself");
  }
};

VCAS_REGISTER_LAYER("add", AddLayer);

}  // namespace

}  // namespace vcas
