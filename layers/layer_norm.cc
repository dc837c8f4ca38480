// y = (x - mean) / sqrt(var + eps) * weight + bias, mean and variance of each row.
#include <utility>

#include "layers/norm_plan.h"

namespace vcas {

namespace {

class LayerNorm final : public Layer {
 public:
  explicit LayerNorm(const LayerConfig& config) : eps_(read_norm_eps(config)) {}

  NodePlan plan(const PlanInput& in) const override {
    check_inputs("layer_norm", in, {in.dtype});
    const ValueSpec& x = in.inputs[0];
    const SavedSpec statistic{1, x.layout, statistics_dtype(in.dtype)};
    NodePlan plan = norm_plan(x, statistic, 1);
    plan.coupling = RowCoupling::kRows;
    plan.takes_sum = true;
    plan.gathers_dy = true;
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    LayerNormForward norm{.y = io.output,
                          .y_norm = io.output_norm,
                          .center = as_vector(io.saved[0]),
                          .rstd = as_vector(io.saved[1]),
                          .x = io.inputs[0],
                          .gamma = io.parameters[0],
                          .beta = io.parameters[1],
                          .eps = eps_};
    if (const auto sum = std::exchange(exec.sum, std::nullopt)) {
      norm.branch = sum->x;
      norm.residual = sum->residual;
      norm.dropout = {sum->p, sum->key, sum->step};
    }
    exec.ops.run(norm);
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    if (wants_nothing(io)) return;
    auto norm = norm_backward<LayerNormBackward>(exec, io);
    norm.dy_row = io.dy_row;
    norm.dy_scale = io.dy_scale;
    norm.center_full = as_vector(io.saved_full[0]);
    norm.rstd_full = as_vector(io.saved_full[1]);
    norm.row = io.rows.of(io.input_specs[0].layout).row;
    // Scratch memory of a gradient that is not wanted does not last until the sum's backward.
    if (io.leaves_dx && norm.dx && bool{io.gradients[0]} == bool{io.gradients[1]})
      exec.norm = norm;
    else
      exec.ops.run(norm);
  }

 private:
  double eps_;
};

VCAS_REGISTER_LAYER("layer_norm", LayerNorm);

}  // namespace

}  // namespace vcas
