// Zeroes each entry with probability p and divides the others by 1 - p, in training only. Backward
// draws the same mask again from its address, so nothing is saved. A second input, the residual, is
// added.
#include <utility>

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
      plan.is_sum = true;
    } else {
      check_inputs("dropout", in, {in.dtype});
      plan.in_place = true;
    }
    plan.output = in.inputs[0];
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    const Dropout dropout{.y = io.output,
                          .y_norm = io.output_norm,
                          .x = io.inputs[0],
                          .residual = io.inputs.size() == 2 ? io.inputs[1] : Tensor{},
                          .p = exec.training ? p_ : 0,
                          .key = exec.key(Stream::kDropout, exec.site),
                          .step = exec.step};
    if (io.leaves_sum)
      exec.sum = dropout;
    else
      run(exec, dropout);
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    const Dropout dropout{.y = io.dx[0],
                          .y_norm = io.dx_norm,
                          .x = io.dy,
                          .row = io.rows.of(io.input_specs[0].layout).row,
                          .p = exec.training ? p_ : 0,
                          .key = exec.key(Stream::kDropout, exec.site),
                          .step = exec.step};
    if (!exec.norm) {
      if (dropout.y) run(exec, dropout);
      return;
    }
    LayerNormBackward norm = *std::exchange(exec.norm, std::nullopt);
    norm.dbranch = dropout.y;
    norm.dbranch_norm = dropout.y_norm;
    norm.dropout = {dropout.p, dropout.key, dropout.step};
    exec.ops.run(norm);
  }

 private:
  static void run(Exec& exec, const Dropout& dropout) {
    const bool changes = dropout.p > 0 || dropout.residual || dropout.y.data != dropout.x.data;
    if (changes || dropout.y_norm) exec.ops.run(dropout);
  }

  double p_;
};

VCAS_REGISTER_LAYER("dropout", DropoutLayer);

}  // namespace

}  // namespace vcas
