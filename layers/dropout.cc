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
    plan.output = in.inputs[0];
    plan.writes_norms = true;
    if (in.inputs.size() == 2) {
      check_sum("dropout", in);
      plan.passes_gradient = {1};
    } else {
      check_inputs("dropout", in, {in.dtype});
      plan.in_place = true;
    }
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    const Tensor residual = io.inputs.size() == 2 ? io.inputs[1] : Tensor{};
    if (residual && !io.output_norm && !drops(exec))
      exec.ops.run(Add{.y = io.output, .a = io.inputs[0], .b = residual});
    else
      apply(exec, io.output, io.output_norm, io.inputs[0], residual, {});
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    if (!io.dx[0]) return;
    apply(exec, io.dx[0], io.dx_norm, io.dy, {}, io.rows.of(io.input_specs[0].rows_per_item).row);
  }

 private:
  bool drops(const Exec& exec) const { return exec.training && p_ > 0; }

  void apply(Exec& exec, const Tensor& y, const Tensor& y_norm, const Tensor& x,
             const Tensor& residual, const Tensor& row) const {
    if (drops(exec) || y_norm)
      exec.ops.run(Dropout{.y = y,
                           .y_norm = y_norm,
                           .x = x,
                           .residual = residual,
                           .row = row,
                           .p = drops(exec) ? p_ : 0,
                           .key = exec.key(Stream::kDropout, exec.site),
                           .step = exec.step});
    else if (y.data != x.data)
      exec.ops.run(Copy{.y = y, .x = x});
  }

  double p_;
};

VCAS_REGISTER_LAYER("dropout", DropoutLayer);

}  // namespace

}  // namespace vcas
