// y[r] = weight[tokens[r]]: one learned row for each entry of a vocabulary.
#include "layers/layer.h"

namespace vcas {

namespace {

class Embedding final : public Layer {
 public:
  explicit Embedding(const LayerConfig& config)
      : vocabulary_(config.get_count("vocabulary")),
        width_(config.get_count("width")),
        init_std_(config.get<double>("init_std", 0.02)) {}

  NodePlan plan(const PlanInput& in) const override {
    check_inputs("embedding", in, {DType::kI32});
    const ValueSpec& tokens = in.inputs[0];
    if (tokens.width != 1)
      throw Error(ExitCode::kBadConfig,
                  "embedding: tokens must have width 1, got " + std::to_string(tokens.width));
    NodePlan plan;
    plan.output = {width_, tokens.layout, in.dtype};
    plan.parameters = {
        {"weight", {vocabulary_, width_}, {Initializer::Kind::kNormal, init_std_}, true}};
    plan.saved_inputs = {0};
    plan.coupling = RowCoupling::kRows;
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.ops.run(EmbeddingForward{
        .y = io.output, .table = io.parameters[0], .tokens = as_vector(io.inputs[0])});
  }

  void backward(Exec& exec, const BackwardIo& io) const override {
    if (!io.gradients[0]) return;
    exec.ops.run(EmbeddingBackward{.dtable = io.gradients[0],
                                   .dy = io.dy,
                                   .tokens_full = as_vector(io.inputs_full[0]),
                                   .row = io.rows.of(io.input_specs[0].layout).row});
  }

 private:
  std::int64_t vocabulary_, width_;
  double init_std_;
};

VCAS_REGISTER_LAYER("embedding", Embedding);

}  // namespace

}  // namespace vcas
