#include "models/blocks.h"

#include <functional>
#include <numeric>

namespace vcas {

Value add_dropout(Graph& graph, const std::string& name, Value x, double p) {
  return p == 0 ? x : graph.add(name, make_layer("dropout", {{"p", p}}), {x});
}

Value add_residual(Graph& graph, const std::string& name, Value residual, Value x, double p) {
  return p == 0 ? graph.add(name, make_layer("add"), {x, residual})
                : graph.add(name, make_layer("dropout", {{"p", p}}), {x, residual});
}

Value add_linear(Graph& graph, const std::string& name, std::int64_t width, Value x,
                 double init_std, bool sampled) {
  return graph.add(
      name, make_layer("linear", {{"width", width}, {"sampled", sampled}, {"init_std", init_std}}),
      {x});
}

Value add_norm(Graph& graph, const std::string& name, Value x, double eps) {
  return graph.add(name, make_layer("layer_norm", {{"eps", eps}}), {x});
}

Value add_weights(Model& model) {
  model.weights = model.graph.optional_input("weights", {1, 1, DType::kF32});
  return model.weights;
}

void add_cross_entropy(Model& model, double label_smoothing) {
  const bool masked = model.masked_rows.index >= 0;
  model.labels = model.graph.input("labels", {1, masked ? kMasked : 1, DType::kI32});
  std::vector<Value> inputs = {model.logits, model.labels};
  if (!masked) inputs.push_back(add_weights(model));
  model.loss = model.graph.add(
      "loss", make_layer("softmax_cross_entropy", {{"label_smoothing", label_smoothing}}), inputs);
}

void add_classifier(Model& model, Value features, std::int64_t classes, double label_smoothing) {
  model.logits = add_linear(model.graph, "classifier", classes, features, 0.02, false);
  add_cross_entropy(model, label_smoothing);
}

void add_values(Model& model, const std::vector<std::int64_t>& item_shape, DType dtype) {
  const std::int64_t values =
      std::accumulate(item_shape.begin(), item_shape.end(), std::int64_t{1}, std::multiplies<>());
  model.values = model.graph.input("values", {values, 1, dtype});
}

}  // namespace vcas
