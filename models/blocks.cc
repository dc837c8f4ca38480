#include "models/blocks.h"

#include "core/sizes.h"

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

Value add_pre_norm_block(Graph& graph, const PreNormBlock& block, const TransformerSettings& sizes,
                         const std::string& name, Value x) {
  // 2 * depth branches add up in the residual stream: each starts smaller (Radford et al. 2019).
  const auto branch_std = [&](std::int64_t fan_in) {
    const std::int64_t branches = 2 * sizes.depth;
    return block.init_std > 0 ? block.init_std / std::sqrt(static_cast<double>(branches))
                              : 1 / std::sqrt(static_cast<double>(fan_in * branches));
  };
  const std::int64_t width = sizes.width, inner = sizes.inner_width();
  Value y = add_norm(graph, name + block.norm, x, block.eps);
  y = add_linear(graph, name + block.qkv, 3 * width, y, block.init_std);
  y = graph.add(name + block.attention,
                make_layer("attention", {{"heads", sizes.heads},
                                         {"dropout", sizes.attention_dropout},
                                         {"causal", block.causal}}),
                {y});
  y = add_linear(graph, name + block.projection, width, y, branch_std(width));
  x = add_residual(graph, name + block.residual, x, y, sizes.dropout);
  y = add_norm(graph, name + block.inner_norm, x, block.eps);
  y = add_linear(graph, name + block.inner, inner, y, block.init_std);
  y = graph.add(name + block.activation, make_layer(block.activation_layer), {y});
  y = add_linear(graph, name + block.outer, width, y, branch_std(inner));
  return add_residual(graph, name + block.inner_residual, x, y, sizes.dropout);
}

void check_ids(std::span<const std::int32_t> ids, std::int64_t limit, const char* what,
               const char* hint) {
  for (const std::int32_t id : ids)
    if (id < 0 || id >= limit)
      throw Error(ExitCode::kBadData,
                  std::string(what) + " " + std::to_string(id) + ", and the model knows " +
                      std::to_string(limit),
                  hint);
}

Value add_values(Model& model, const std::vector<std::int64_t>& item_shape, DType dtype) {
  const std::int64_t width = product_of(item_shape);
  const auto fill = [=, rounded = std::vector<bfloat16>(),
                     wide = std::vector<double>()](const BatchPart& part) mutable {
    const auto values = part.of(part.batch.values, Layout::items(width), "values");
    if (dtype == DType::kF32) return std::as_bytes(values);
    if (dtype == DType::kBF16) {
      rounded.clear();
      for (const float value : values) rounded.emplace_back(value);
      return std::as_bytes(std::span<const bfloat16>(rounded));
    }
    wide.assign(values.begin(), values.end());
    return std::as_bytes(std::span<const double>(wide));
  };
  return model.input("values", {width, Layout::items(1), dtype}, fill);
}

Value add_labels(Model& model, std::int64_t classes) {
  const auto fill = [classes, known = std::vector<std::int32_t>()](const BatchPart& part) mutable {
    known.clear();
    for (const std::int32_t label : part.of(part.batch.labels, Layout::items(1), "labels"))
      known.push_back(label == -1 ? 0 : label);  // not known: only the logits are wanted
    check_ids(known, classes, "label", "the classes of the data are not those of the model");
    return std::as_bytes(std::span<const std::int32_t>(known));
  };
  model.labels = model.input("labels", {1, Layout::items(1), DType::kI32}, fill);
  return model.labels;
}

Value add_weights(Model& model) {
  model.weights = model.graph.optional_input("weights", {1, Layout::items(1), DType::kF32});
  return model.weights;
}

void add_cross_entropy(Model& model, Value labels, double label_smoothing) {
  std::vector<Value> inputs = {model.logits, labels};
  if (model.graph.spec(labels).layout == Layout::items(1)) inputs.push_back(add_weights(model));
  model.loss = model.graph.add(
      "loss", make_layer("softmax_cross_entropy", {{"label_smoothing", label_smoothing}}), inputs);
}

void add_classifier(Model& model, Value features, std::int64_t classes, double label_smoothing) {
  model.logits = add_linear(model.graph, "classifier", classes, features, kTransformerStd, false);
  add_cross_entropy(model, add_labels(model, classes), label_smoothing);
}

}  // namespace vcas
