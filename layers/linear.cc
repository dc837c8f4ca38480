// y = x W^T + b. The weight gradient is left to the method unless `sampled` is false.
#include <cmath>

#include "layers/layer.h"

namespace vcas {

namespace {

class Linear final : public Layer {
 public:
  explicit Linear(const LayerConfig& config)
      : width_(config.get_count("width")),
        bias_(config.get<bool>("bias", true)),
        sampled_(config.get<bool>("sampled", true)),
        init_std_(config.get<double>("init_std", 0.0)) {}

  NodePlan plan(const PlanInput& in) const override {
    check_inputs("linear", in, {in.dtype});
    const ValueSpec& x = in.inputs[0];
    // Without a given deviation, one that keeps the variance of x (LeCun et al. 1998).
    const double init_std = init_std_ > 0 ? init_std_ : 1 / std::sqrt(static_cast<double>(x.width));
    NodePlan plan;
    plan.output = {width_, x.layout, in.dtype};
    plan.parameters = {{"weight", {width_, x.width}, {Initializer::Kind::kNormal, init_std}, true}};
    if (bias_) plan.parameters.push_back({"bias", {width_}, {}, false});
    plan.saved_inputs = {0};
    plan.coupling = RowCoupling::kRows;
    plan.accumulates = true;
    plan.samples_weight = sampled_;
    plan.writes_gradients = true;
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.ops.run(LinearForward{.y = io.output,
                               .x = io.inputs[0],
                               .weight = io.parameters[0],
                               .bias = bias_ ? io.parameters[1] : Tensor{}});
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    io.weight_gradient(exec);
    const Tensor &dx = io.dx[0], &added = io.added[0];
    if (!dx) return;
    if (added && added.data != dx.data) exec.ops.run(Copy{.y = dx, .x = added});
    exec.ops.run(LinearBackwardInput{
        .dx = dx, .dy = io.dy, .weight = io.parameters[0], .accumulate = bool{added}});
  }

 private:
  std::int64_t width_;
  bool bias_;
  bool sampled_;
  double init_std_;
};

VCAS_REGISTER_LAYER("linear", Linear);

}  // namespace

}  // namespace vcas
