// A multi-layer perceptron: blocks of linear and GELU.
#include "models/blocks.h"

namespace vcas {

void build_mlp(Model& model, const ModelOptions& options, std::int64_t classes,
               double label_smoothing) {
  Graph& graph = model.graph;
  Value x = model.values;
  for (std::int64_t block = 0; block < options.depth; ++block) {
    const std::string name = "mlp.layer." + std::to_string(block);
    x = add_linear(graph, name + ".dense", options.width, x);
    x = graph.add(name + ".gelu", make_layer("gelu"), {x});
    x = add_dropout(graph, name + ".dropout", x, options.dropout);
    graph.gate(x);
  }
  add_classifier(model, x, classes, label_smoothing);
}

}  // namespace vcas
