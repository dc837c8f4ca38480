// Group normalization (Wu & He 2018):
//   y = (x - mean) / sqrt(var + eps) * weight + bias
// Mean and variance are over the rows of an item and the columns of a group.
#include "layers/norm_plan.h"

namespace vcas {

namespace {

class GroupNorm final : public Layer {
 public:
  explicit GroupNorm(const LayerConfig& config)
      : groups_(config.get_count("groups")),
        eps_(read_norm_eps(config)),
        gain_(config.get<double>("gain", 1.0)) {}

  NodePlan plan(const PlanInput& in) const override {
    check_inputs("group_norm", in, {in.dtype});
    const ValueSpec& x = in.inputs[0];
    check_has_rows("group_norm", x.layout);
    if (x.width % groups_ != 0)
      throw Error(ExitCode::kBadConfig, "group_norm: " + std::to_string(groups_) +
                                            " groups do not divide the width " +
                                            std::to_string(x.width));
    const SavedSpec statistic{groups_, Layout::items(1), statistics_dtype(in.dtype)};
    return norm_plan(x, statistic, gain_);
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.ops.run(GroupNormForward{.y = io.output,
                                  .y_norm = io.output_norm,
                                  .mean = io.saved[0],
                                  .rstd = io.saved[1],
                                  .x = io.inputs[0],
                                  .gamma = io.parameters[0],
                                  .beta = io.parameters[1],
                                  .offsets = io.rows.of(io.input_specs[0].layout).offsets,
                                  .eps = eps_});
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    if (wants_nothing(io)) return;
    const RowSet& rows = io.rows.of(io.input_specs[0].layout);
    auto norm = norm_backward<GroupNormBackward>(exec, io);
    norm.mean_full = io.saved_full[0];
    norm.rstd_full = io.saved_full[1];
    norm.row = rows.row;
    norm.item = rows.item;
    norm.offsets = rows.offsets;
    exec.ops.run(norm);
  }

 private:
  std::int64_t groups_;
  double eps_, gain_;
};

VCAS_REGISTER_LAYER("group_norm", GroupNorm);

}  // namespace

}  // namespace vcas
