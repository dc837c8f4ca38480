// An image becomes rows: one a pixel, with the values of its channels. There is no gradient to
// images.
#include "layers/image_patches.h"

namespace vcas {

namespace {

class ImageRows final : public Layer {
 public:
  explicit ImageRows(const LayerConfig& config)
      : channels_(config.get_count("channels")),
        height_(config.get_count("height")),
        width_(config.get_count("width")) {}

  NodePlan plan(const PlanInput& in) const override {
    check_image("image_rows", in, channels_ * height_ * width_);
    NodePlan plan;
    plan.output = {channels_, Layout::items(height_ * width_), in.dtype};
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    const Tensor& images = io.inputs[0];
    exec.ops.run(PatchExtract{
        .y = io.output, .image = images.reshaped({images.rows(), channels_, height_, width_})});
  }

  void backward(Exec&, const BackwardIo&) const override {}

 private:
  std::int64_t channels_, height_, width_;
};

VCAS_REGISTER_LAYER("image_rows", ImageRows);

}  // namespace

}  // namespace vcas
