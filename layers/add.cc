// y = a + b: the residual connection.
#include "layers/layer.h"

namespace vcas {

namespace {

class AddLayer final : public Layer {
 public:
  explicit AddLayer(const LayerConfig&) {}

  NodePlan plan(const PlanInput& in) const override {
    check_inputs("add", in, {in.dtype, in.dtype});
    const ValueSpec &a = in.inputs[0], &b = in.inputs[1];
    if (a.width != b.width || a.rows_per_item != b.rows_per_item)
      throw Error(ExitCode::kBadConfig, "add: widths " + std::to_string(a.width) + " and " +
                                            std::to_string(b.width) + ", rows per item " +
                                            layout_name(a.rows_per_item) + " and " +
                                            layout_name(b.rows_per_item) + " differ");
    NodePlan plan;
    plan.output = a;
    plan.passes_gradient = true;
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.ops.run(Add{.y = io.output, .a = io.inputs[0], .b = io.inputs[1]});
  }

  void backward(Exec&, const BackwardIo&) const override {
    throw InternalError("add: the graph passes the gradient on by itself");
  }
};

VCAS_REGISTER_LAYER("add", AddLayer);

}  // namespace

}  // namespace vcas
