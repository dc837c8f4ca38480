// y = (x - mean) / sqrt(var + eps) * weight + bias, mean and variance of each column over the rows
// of the batch. Evaluations take running statistics in their place; with `frozen` training does
// too, and the running statistics stay. A micro-batch has statistics of its own.
#include "layers/norm_plan.h"

namespace vcas {

namespace {

class BatchNorm final : public Layer {
 public:
  explicit BatchNorm(const LayerConfig& config)
      : eps_(read_norm_eps(config)),
        momentum_(config.get<double>("momentum", 0.1)),
        gain_(config.get<double>("gain", 1.0)),
        frozen_(config.get<bool>("frozen", false)) {
    if (!(momentum_ >= 0 && momentum_ <= 1))
      config.fail("momentum", "must be from 0 to 1, got " + std::to_string(momentum_));
  }

  NodePlan plan(const PlanInput& in) const override {
    check_inputs("batch_norm", in, {in.dtype});
    const ValueSpec& x = in.inputs[0];
    const Initializer one{Initializer::Kind::kConstant, 1};
    // Row set of the batch. It has as many rows as items; the first one is used.
    const SavedSpec statistic{x.width, Layout::items(1), statistics_dtype(in.dtype)};
    NodePlan plan = norm_plan(x, statistic, gain_);
    plan.state = {{"running_mean", {x.width}, {}}, {"running_var", {x.width}, one}};
    plan.coupling = frozen_ ? RowCoupling::kItems : RowCoupling::kBatchLinear;
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    const bool given = frozen_ || !exec.training;
    const bool updates = !given && exec.updates_state;
    if (!given && io.inputs[0].rows() == 1)
      throw Error(ExitCode::kBadConfig, "batch_norm: one row has no variance to train with",
                  "each micro-batch needs two items, the last of train.batch_size too; or set "
                  "model.norm to group");
    exec.ops.run(GroupNormForward{.y = io.output,
                                  .y_norm = io.output_norm,
                                  .mean = io.saved[0].first_rows(1),
                                  .rstd = io.saved[1].first_rows(1),
                                  .running_mean = updates ? io.state[0] : Tensor{},
                                  .running_var = updates ? io.state[1] : Tensor{},
                                  .x = io.inputs[0],
                                  .gamma = io.parameters[0],
                                  .beta = io.parameters[1],
                                  .given_mean = given ? io.state[0] : Tensor{},
                                  .given_var = given ? io.state[1] : Tensor{},
                                  .eps = eps_,
                                  .momentum = momentum_});
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    if (wants_nothing(io)) return;
    const Layout layout = io.input_specs[0].layout;
    const RowSet &rows = io.rows.of(layout), &full = io.rows_full.of(layout);
    const RowSet& rows_dx = io.rows_dx.of(layout);
    const std::int64_t dropped = full.items - rows.items, echoes = rows_dx.items - rows.items;
    VCAS_CHECK(frozen_ || dropped == 0 || echoes > 0, "dropped items without echoes");
    auto norm = norm_backward<GroupNormBackward>(exec, io);
    norm.mean_full = io.saved_full[0].first_rows(1);
    norm.rstd_full = io.saved_full[1].first_rows(1);
    norm.row = rows_dx.row;
    norm.echo_scale = echo_scale(dropped, echoes);
    norm.fixed = frozen_ || !exec.training;
    exec.ops.run(norm);
  }

 private:
  double eps_, momentum_, gain_;
  bool frozen_;
};

VCAS_REGISTER_LAYER("batch_norm", BatchNorm);

}  // namespace

}  // namespace vcas
