// The loss of a classifier: -sum over classes of q log softmax(logits) of each row, q the label's
// one-hot vector smoothed. Saves whether the largest logit is the label's (i32).
#include "layers/loss_weight.h"

namespace vcas {

namespace {

class SoftmaxCrossEntropy final : public Layer {
 public:
  explicit SoftmaxCrossEntropy(const LayerConfig& config)
      : smoothing_(config.get_probability("label_smoothing")) {}

  NodePlan plan(const PlanInput& in) const override {
    check_loss_inputs("softmax_cross_entropy", in, DType::kI32);
    const ValueSpec &logits = in.inputs[0], &labels = in.inputs[1];
    if (logits.layout != labels.layout || labels.width != 1)
      throw Error(ExitCode::kBadConfig,
                  "softmax_cross_entropy: logits and labels must have the same rows, and a label "
                  "width 1; got " +
                      logits.layout.text() + " and " + labels.layout.text() +
                      " rows an item, and width " + std::to_string(labels.width));
    NodePlan plan;
    plan.output = {1, logits.layout, statistics_dtype(in.dtype)};
    plan.saved = {{1, logits.layout, DType::kI32}};  // correct
    plan.saved_inputs = loss_inputs(in);
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.ops.run(CrossEntropyForward{.loss = as_vector(io.output),
                                     .correct = as_vector(io.saved[0]),
                                     .logits = io.inputs[0],
                                     .labels = as_vector(io.inputs[1]),
                                     .weight = loss_weight(io.inputs),
                                     .smoothing = smoothing(exec)});
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    if (!io.dx[0]) return;
    exec.ops.run(CrossEntropyBackward{.dlogits = io.dx[0],
                                      .logits = io.inputs_full[0],
                                      .labels = as_vector(io.inputs_full[1]),
                                      .weight = loss_weight(io.inputs_full),
                                      .smoothing = smoothing(exec),
                                      .scale = io.loss_scale});
  }

 private:
  // Evaluations compare over settings: they have none.
  double smoothing(const Exec& exec) const { return exec.training ? smoothing_ : 0; }

  double smoothing_;
};

VCAS_REGISTER_LAYER("softmax_cross_entropy", SoftmaxCrossEntropy);

}  // namespace

}  // namespace vcas
