// Vision Transformer (Dosovitskiy et al. 2021): patches, learned positions, pre-norm blocks. Names
// follow the Hugging Face ViT, with query, key and value as one linear layer.
#include <cmath>

#include "models/blocks.h"

namespace vcas {

namespace {

Value add_block(Graph& graph, const std::string& name, const ModelOptions& options, Value x) {
  const std::int64_t inner = options.inner_width();
  // 2 * depth branches add up in the residual stream: each starts smaller (Radford et al. 2019).
  const auto branch_std = [&](std::int64_t fan_in) {
    return 1 / std::sqrt(static_cast<double>(fan_in * 2 * options.depth));
  };
  Value y = add_norm(graph, name + ".layernorm_before", x, options.eps());
  y = add_linear(graph, name + ".attention.qkv", 3 * options.width, y);
  y = graph.add(
      name + ".attention",
      make_layer("attention", {{"heads", options.heads}, {"dropout", options.attention_dropout}}),
      {y});
  y = add_linear(graph, name + ".attention.output.dense", options.width, y,
                 branch_std(options.width));
  x = add_residual(graph, name + ".attention.residual", x, y, options.dropout);
  y = add_norm(graph, name + ".layernorm_after", x, options.eps());
  y = add_linear(graph, name + ".intermediate.dense", inner, y);
  y = graph.add(name + ".intermediate.gelu", make_layer("gelu"), {y});
  y = add_linear(graph, name + ".output.dense", options.width, y, branch_std(inner));
  return add_residual(graph, name + ".residual", x, y, options.dropout);
}

}  // namespace

void build_vit(Model& model, const ModelOptions& options,
               const std::vector<std::int64_t>& item_shape, std::int64_t classes,
               double label_smoothing) {
  if (item_shape.size() != 3)
    throw Error(ExitCode::kBadConfig, "model.type \"vit\" needs images, and the data holds vectors",
                "set model.type to \"mlp\"");
  Graph& graph = model.graph;
  const bool first = options.pooling == "first";
  Value x = graph.add("vit.embeddings",
                      make_layer("patch_embed", {{"channels", item_shape[0]},
                                                 {"height", item_shape[1]},
                                                 {"width", item_shape[2]},
                                                 {"patch", options.patch},
                                                 {"features", options.width},
                                                 {"cls", first}}),
                      {model.values});
  x = add_dropout(graph, "vit.embeddings.dropout", x, options.dropout);
  for (std::int64_t block = 0; block < options.depth; ++block) {
    x = add_block(graph, "vit.encoder.layer." + std::to_string(block), options, x);
    graph.gate(x);
  }
  // The norm works row by row, so it may follow the choice of the class token, and then has N rows.
  const auto pool = [&] {
    x = graph.add("vit.pool", make_layer("pool", {{"pooling", options.pooling}}), {x});
  };
  if (first) pool();
  x = add_norm(graph, "vit.layernorm", x, options.eps());
  if (!first) pool();
  add_classifier(model, x, classes, label_smoothing);
}

}  // namespace vcas
