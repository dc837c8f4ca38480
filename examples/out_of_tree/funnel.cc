// A model of one's own, with a layer of one's own: a perceptron whose width halves from block to
// block. It is chosen by "type=funnel".
#include <algorithm>

#include "vcas/models/blocks.h"

namespace {

using namespace vcas;

struct Funnel final : ModelKind {
  std::int64_t width = 64, depth = 3;

  void fields(Setting& v) {
    v.field("width", width, "Width of the first block.", between(1, 1 << 20));
    v.field("depth", depth, "Number of blocks.", between(1, 20));
  }

  void build(Model& model, const std::vector<std::int64_t>& item_shape, std::int64_t classes,
             double label_smoothing) const override {
    Graph& graph = model.graph;
    Value x = add_values(model, item_shape, graph.dtype());
    for (std::int64_t block = 0; block < depth; ++block) {
      const std::string name = "funnel.layer." + std::to_string(block);
      x = add_linear(graph, name + ".dense", std::max<std::int64_t>(1, width >> block), x);
      x = graph.add(name + ".gain", make_layer("column_gain"), {x});
      x = graph.add(name + ".gelu", make_layer("gelu"), {x});
      graph.gate(x);
    }
    add_classifier(model, x, classes, label_smoothing);
  }
};

VCAS_REGISTER_PART(ModelKind, "funnel", Funnel);

}  // namespace
