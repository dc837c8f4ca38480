// Linear maps. The weight gradient is left to the method unless `sampled` is false.
#include <cmath>

#include "layers/image_patches.h"

namespace vcas {

namespace {

// y = x W^T + b, or of the patches of images in place of x.
class LinearMap : public Layer {
 public:
  LinearMap(const LayerConfig& config, const char* width, bool bias, const Patches& patches)
      : width_(config.get_count(width)),
        bias_(config.get<bool>("bias", bias)),
        sampled_(config.get<bool>("sampled", true)),
        patches_(patches) {}

  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.ops.run(LinearForward{.y = io.output,
                               .x = io.inputs[0],
                               .weight = io.parameters[0],
                               .bias = bias_ ? io.parameters[1] : Tensor{},
                               .patches = patches_});
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    io.weight_gradient(exec, patches_);
    const Tensor &dx = io.dx[0], &added = io.added[0];
    if (!dx) return;
    if (added && added.data != dx.data) exec.ops.run(Copy{.y = dx, .x = added});
    exec.ops.run(LinearBackwardInput{.dx = dx,
                                     .dy = io.dy,
                                     .weight = io.parameters[0],
                                     .patches = patches_,
                                     .accumulate = bool{added}});
  }

 protected:
  NodePlan plan_of(std::int64_t values, Layout layout, DType dtype, double init_std) const {
    NodePlan plan;
    plan.output = {width_, layout, dtype};
    plan.parameters = {{"weight", {width_, values}, {Initializer::Kind::kNormal, init_std}, true}};
    if (bias_) plan.parameters.push_back({"bias", {width_}, {}, false});
    plan.saved_inputs = {0};
    plan.accumulates = true;
    plan.samples_weight = sampled_;
    plan.writes_gradients = true;
    return plan;
  }

 private:
  std::int64_t width_;
  bool bias_, sampled_;
  Patches patches_;
};

class Linear final : public LinearMap {
 public:
  explicit Linear(const LayerConfig& config)
      : LinearMap(config, "width", true, {}), init_std_(config.get<double>("init_std", 0.0)) {}

  NodePlan plan(const PlanInput& in) const override {
    check_inputs("linear", in, {in.dtype});
    const ValueSpec& x = in.inputs[0];
    // Without a given deviation, one that keeps the variance of x (LeCun et al. 1998).
    const double init_std = init_std_ > 0 ? init_std_ : 1 / std::sqrt(static_cast<double>(x.width));
    NodePlan plan = plan_of(x.width, x.layout, in.dtype, init_std);
    plan.coupling = RowCoupling::kRows;
    return plan;
  }

 private:
  double init_std_;
};

VCAS_REGISTER_LAYER("linear", Linear);

// A convolution: the linear map of the patches of images, whose pixels are rows. The weight
// [D, kernel * kernel * C] has the values of a patch in its order.
class Conv2d final : public LinearMap {
 public:
  explicit Conv2d(const LayerConfig& config) : Conv2d(config, read_patches(config)) {}

  NodePlan plan(const PlanInput& in) const override {
    check_pixels("conv2d", in, all_.in_rows());
    const std::int64_t values = all_.taps() * in.inputs[0].width;
    // Keeps the variance of what passes ReLUs (He et al. 2015).
    return plan_of(values, Layout::items(all_.out_rows()), in.dtype,
                   std::sqrt(2 / static_cast<double>(values)));
  }

 private:
  // Patches of single pixels, all of them, are the rows as they lie.
  Conv2d(const LayerConfig& config, const Patches& all)
      : LinearMap(config, "features", false, all.kernel == 1 && all.stride == 1 ? Patches{} : all),
        all_(all) {}

  Patches all_;
};

VCAS_REGISTER_LAYER("conv2d", Conv2d);

}  // namespace

}  // namespace vcas
