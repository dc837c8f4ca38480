// A linear model, and what may keep methods from dropping items of its batches.
#pragma once

#include "models/model.h"

namespace vcas {

// As BatchNorm declares itself.
class BatchCoupled final : public Layer {
 public:
  NodePlan plan(const PlanInput& in) const override {
    return {.output = in.inputs[0], .coupling = RowCoupling::kBatchLinear};
  }
  void forward(Exec&, const ForwardIo&) const override {}
  void backward(Exec&, const BackwardIo&) const override {}
};

struct LinearModel {
  bool gate = true, weights = true, mixes = false;
};

// Its graph still has to be finished.
inline std::unique_ptr<Model> linear_model(const LinearModel& wanted) {
  auto model = std::make_unique<Model>(DType::kF32);
  Graph& graph = model->graph;
  const Value values = graph.input("values", {8, Layout::items(1), DType::kF32});
  const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
  Value x = graph.add("block", make_layer("linear", {{"width", 8}}), {values});
  if (wanted.gate) graph.gate(x);
  if (wanted.mixes) x = graph.add("norm", std::make_unique<BatchCoupled>(), {x});
  model->logits = graph.add("head", make_layer("linear", {{"width", 4}}), {x});
  std::vector<Value> inputs = {model->logits, labels};
  if (wanted.weights)
    inputs.push_back(model->weights =
                         graph.optional_input("weights", {1, Layout::items(1), DType::kF32}));
  model->loss = graph.add("loss", make_layer("softmax_cross_entropy"), inputs);
  return model;
}

}  // namespace vcas
