// A convolution: the linear map of the patches of images, whose pixels are rows. The weight
// [D, kernel * kernel * C] has the values of a patch in its order. Its gradient is left to the
// method unless `sampled` is false.
#include <cmath>

#include "layers/image_patches.h"

namespace vcas {

namespace {

class Conv2d final : public Layer {
 public:
  explicit Conv2d(const LayerConfig& config)
      : features_(config.get_count("features")),
        bias_(config.get<bool>("bias", false)),
        sampled_(config.get<bool>("sampled", true)),
        patches_(read_patches(config)) {}

  NodePlan plan(const PlanInput& in) const override {
    check_pixels("conv2d", in, patches_.in_rows());
    const std::int64_t values = patches_.taps() * in.inputs[0].width;
    // Keeps the variance of what passes ReLUs (He et al. 2015).
    const double init_std = std::sqrt(2 / static_cast<double>(values));
    NodePlan plan;
    plan.output = {features_, Layout::items(patches_.out_rows()), in.dtype};
    plan.parameters = {
        {"weight", {features_, values}, {Initializer::Kind::kNormal, init_std}, true}};
    if (bias_) plan.parameters.push_back({"bias", {features_}, {}, false});
    plan.saved_inputs = {0};
    plan.accumulates = true;
    plan.samples_weight = sampled_;
    plan.writes_gradients = true;
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.ops.run(LinearForward{.y = io.output,
                               .x = io.inputs[0],
                               .weight = io.parameters[0],
                               .bias = bias_ ? io.parameters[1] : Tensor{},
                               .patches = read()});
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    io.weight_gradient(exec, read());
    const Tensor &dx = io.dx[0], &added = io.added[0];
    if (!dx) return;
    if (added && added.data != dx.data) exec.ops.run(Copy{.y = dx, .x = added});
    exec.ops.run(LinearBackwardInput{.dx = dx,
                                     .dy = io.dy,
                                     .weight = io.parameters[0],
                                     .patches = read(),
                                     .accumulate = bool{added}});
  }

 private:
  // Patches of single pixels, all of them, are the rows as they lie.
  Patches read() const {
    return patches_.kernel == 1 && patches_.stride == 1 ? Patches{} : patches_;
  }

  std::int64_t features_;
  bool bias_;
  bool sampled_;
  Patches patches_;
};

VCAS_REGISTER_LAYER("conv2d", Conv2d);

}  // namespace

}  // namespace vcas
