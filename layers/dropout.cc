// Zeroes each entry with probability p and divides the others by 1 - p, in training only. Backward
// draws the same mask again from its address, so nothing is saved. A second input, the residual, is
// added.
#include "layers/layer.h"

namespace vcas {

namespace {

class DropoutLayer final : public Layer {
 public:
  explicit DropoutLayer(const LayerConfig& config) : p_(config.get_probability("p")) {}

  NodePlan plan(const PlanInput& in) const override {
    NodePlan plan;
    plan.coupling = RowCoupling::kRows;
    plan.writes_norms = true;
    if (in.inputs.size() == 2) {
      check_sum("dropout", in);
      plan.passes_gradient = {1};
    } else {
      check_inputs("dropout", in, {in.dtype});
      plan.in_place = true;
    }
    plan.output = in.inputs[0];
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    const Tensor residual = io.inputs.size() == 2 ? io.inputs[1] : Tensor{};
    apply(exec, io.output, io.output_norm, io.inputs[0], residual, {});
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    if (!io.dx[0]) return;
    apply(exec, io.dx[0], io.dx_norm, io.dy, {}, io.rows.of(io.input_specs[0].layout).row);
  }

 private:
  void apply(Exec& exec, const Tensor& y, const Tensor& y_norm, const Tensor& x,
             const Tensor& residual, const Tensor& row) const {
    const double p = exec.training ? p_ : 0;
    if (p > 0 || y_norm)
      exec.ops.run(Dropout{.y = y,
                           .y_norm = y_norm,
                           .x = x,
                           .residual = residual,
                           .row = row,
                           .p = p,
                           .key = exec.key(Stream::kDropout, exec.site),
                           .step = exec.step});
    else if (residual)
      exec.ops.run(Add{.y = y, .a = x, .b = residual});
    else if (y.data != x.data)
      exec.ops.run(Copy{.y = y, .x = x});
  }

  double p_;
};

VCAS_REGISTER_LAYER("dropout", DropoutLayer);

}  // namespace

}  // namespace vcas
