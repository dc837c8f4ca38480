// One row an item: its first row, or the mean of its rows.
#include "layers/layer.h"

namespace vcas {

namespace {

class Pool final : public Layer {
 public:
  explicit Pool(const LayerConfig& config) {
    const auto name = config.get<std::string>("pooling");
    if (name != "first" && name != "mean")
      config.fail("pooling", "must be \"first\" or \"mean\", got \"" + name + "\"");
    pooling_ = name == "first" ? Pooling::kFirst : Pooling::kMean;
  }

  NodePlan plan(const PlanInput& in) const override {
    check_inputs("pool", in, {in.dtype});
    check_has_rows("pool", in.inputs[0].layout);
    NodePlan plan;
    plan.output = {in.inputs[0].width, Layout::items(1), in.dtype};
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.ops.run(PoolForward{.y = io.output,
                             .x = io.inputs[0],
                             .offsets = io.rows.of(io.input_specs[0].layout).offsets,
                             .pooling = pooling_});
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    if (!io.dx[0]) return;
    exec.ops.run(PoolBackward{.dx = io.dx[0],
                              .dy = io.dy,
                              .offsets = io.rows.of(io.input_specs[0].layout).offsets,
                              .pooling = pooling_});
  }

 private:
  Pooling pooling_;
};

VCAS_REGISTER_LAYER("pool", Pool);

}  // namespace

}  // namespace vcas
