// Multi-head self-attention of each item's rows over themselves. The input holds query, key and
// value side by side, [R, 3C]; the output is [R, C].
#include "layers/layer.h"

namespace vcas {

namespace {

class Attention final : public Layer {
 public:
  explicit Attention(const LayerConfig& config)
      : heads_(config.get_count("heads")), dropout_(config.get_probability("dropout", 0)) {}

  NodePlan plan(const PlanInput& in) const override {
    check_inputs("attention", in, {in.dtype});
    const ValueSpec& qkv = in.inputs[0];
    if (qkv.width % 3 != 0)
      throw Error(ExitCode::kBadConfig, "attention: input width " + std::to_string(qkv.width) +
                                            " is not 3 times a width (query, key, value)");
    const std::int64_t width = qkv.width / 3;
    if (width % heads_ != 0)
      throw Error(ExitCode::kBadConfig, "attention: heads " + std::to_string(heads_) +
                                            " does not divide width " + std::to_string(width));
    NodePlan plan;
    plan.output = {width, qkv.rows_per_item, in.dtype};
    plan.saved = {{heads_, qkv.rows_per_item, statistics_dtype(in.dtype)}};  // lse
    plan.saved_inputs = {0};
    plan.saved_output = true;
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.ops.run(AttentionForward{.y = io.output,
                                  .lse = io.saved[0],
                                  .qkv = io.inputs[0],
                                  .offsets = io.rows.of(io.input_specs[0].rows_per_item).offsets,
                                  .heads = heads_,
                                  .dropout = exec.training ? dropout_ : 0,
                                  .key = exec.key(Stream::kDropout, exec.site)});
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    if (!io.dx[0]) return;
    const std::int64_t layout = io.input_specs[0].rows_per_item;
    const RowSet& rows = io.rows.of(layout);
    exec.ops.run(AttentionBackward{.dqkv = io.dx[0],
                                   .dy = io.dy,
                                   .qkv_full = io.inputs_full[0],
                                   .y_full = io.output_full,
                                   .lse_full = io.saved_full[0],
                                   .offsets = rows.offsets,
                                   .offsets_full = io.rows_full.of(layout).offsets,
                                   .item = rows.item,
                                   .heads = heads_,
                                   .dropout = exec.training ? dropout_ : 0,
                                   .key = exec.key(Stream::kDropout, exec.site)});
  }

 private:
  std::int64_t heads_;
  double dropout_;
};

VCAS_REGISTER_LAYER("attention", Attention);

}  // namespace

}  // namespace vcas
