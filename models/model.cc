#include "models/model.h"

#include "models/blocks.h"

namespace vcas {

Value add_dropout(Graph& graph, const std::string& name, Value x, double p) {
  return p == 0 ? x : graph.add(name, make_layer("dropout", {{"p", p}}), {x});
}

void add_inputs(Model& model, std::int64_t item_values) {
  model.input = model.graph.input("input", {item_values, 1, DType::kF32});
  model.labels = model.graph.input("labels", {1, 1, DType::kI32});
}

void add_classifier(Model& model, Value features, std::int64_t classes, double label_smoothing) {
  Graph& graph = model.graph;
  model.logits =
      graph.add("classifier",
                make_layer("linear", {{"width", classes}, {"sampled", false}, {"init_std", 0.02}}),
                {features});
  model.loss =
      graph.add("loss", make_layer("softmax_cross_entropy", {{"label_smoothing", label_smoothing}}),
                {model.logits, model.labels});
}

std::unique_ptr<Model> build_model(const ModelOptions& options,
                                   const std::vector<std::int64_t>& item_shape,
                                   std::int64_t classes, double label_smoothing, DType dtype) {
  auto model = std::make_unique<Model>(dtype);
  std::int64_t values = 1;
  for (const std::int64_t extent : item_shape) values *= extent;
  add_inputs(*model, values);
  if (options.type == "vit")
    build_vit(*model, options, item_shape, classes, label_smoothing);
  else
    build_mlp(*model, options, classes, label_smoothing);
  return model;
}

}  // namespace vcas
