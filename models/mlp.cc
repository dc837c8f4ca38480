// A multi-layer perceptron: blocks of linear and GELU.
#include "models/blocks.h"

namespace vcas {

namespace {

struct Mlp final : ModelKind {
  std::int64_t width = 192;
  std::int64_t depth = 6;
  double dropout = 0.0;

  void fields(Setting& v) {
    v.field("width", width, "Width of the blocks.", between(1, 1 << 20));
    v.field("depth", depth, "Number of blocks.", between(1, 10'000));
    v.field("dropout", dropout, "Dropout after each block.", at_least(0.0), below(1.0));
  }

  void build(Model& model, const std::vector<std::int64_t>& item_shape, std::int64_t classes,
             double label_smoothing) const override {
    Graph& graph = model.graph;
    Value x = add_values(model, item_shape, graph.dtype());
    for (std::int64_t block = 0; block < depth; ++block) {
      const std::string name = "mlp.layer." + std::to_string(block);
      x = add_linear(graph, name + ".dense", width, x);
      x = graph.add(name + ".gelu", make_layer("gelu"), {x});
      x = add_dropout(graph, name + ".dropout", x, dropout);
      graph.gate(x);
    }
    add_classifier(model, x, classes, label_smoothing);
  }
};

VCAS_REGISTER_PART(ModelKind, "mlp", Mlp);

}  // namespace

}  // namespace vcas
