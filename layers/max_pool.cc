// The largest value of each column in the patches of images, whose pixels are rows.
#include "layers/image_patches.h"

namespace vcas {

namespace {

class MaxPool final : public Layer {
 public:
  explicit MaxPool(const LayerConfig& config) : patches_(read_patches(config)) {}

  NodePlan plan(const PlanInput& in) const override {
    check_pixels("max_pool", in, patches_.in_rows());
    NodePlan plan;
    plan.output = {in.inputs[0].width, Layout::items(patches_.out_rows()), in.dtype};
    plan.saved = {{plan.output.width, plan.output.layout, DType::kI32}};  // taps
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.ops.run(
        MaxPoolForward{.y = io.output, .tap = io.saved[0], .x = io.inputs[0], .patches = patches_});
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    if (!io.dx[0]) return;
    exec.ops.run(MaxPoolBackward{.dx = io.dx[0],
                                 .dy = io.dy,
                                 .tap_full = io.saved_full[0],
                                 .row = io.rows.of(Layout::items(patches_.out_rows())).row,
                                 .patches = patches_});
  }

 private:
  Patches patches_;
};

VCAS_REGISTER_LAYER("max_pool", MaxPool);

}  // namespace

}  // namespace vcas
