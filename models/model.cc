#include "models/model.h"

#include <algorithm>

#include "models/blocks.h"

namespace vcas {

namespace {

// The rows of `value` in the present batch, which `from` holds from its row `first_row` on.
template <class T>
void copy_rows(Ops& ops, const Graph& graph, Value value, const std::vector<T>& from,
               std::int64_t first_row, const char* what) {
  if (value.index < 0) return;
  const Tensor to = graph.tensor(value);
  VCAS_CHECK(std::ssize(from) >= first_row * to.width() + to.elements(),
             "a batch of " + std::to_string(from.size()) + " " + what + " for rows " +
                 to.shape.text() + " from " + std::to_string(first_row) + " on");
  ops.copy_to_device(to.data, from.data() + first_row * to.width(), to.bytes());
}

// to = from[first .. first + items] less its first; empty where `from` is.
void rebase(std::vector<std::int64_t>& to, const std::vector<std::int64_t>& from,
            std::int64_t first, std::int64_t items) {
  to.clear();
  if (from.empty()) return;
  for (auto n = static_cast<std::size_t>(first); n <= static_cast<std::size_t>(first + items); ++n)
    to.push_back(from.at(n) - from[static_cast<std::size_t>(first)]);
}

std::int64_t at_or_zero(const std::vector<std::int64_t>& offsets, std::int64_t n) {
  return offsets.empty() ? 0 : offsets.at(static_cast<std::size_t>(n));
}

}  // namespace

std::int64_t Model::loss_terms(const Batch& batch, std::int64_t first, std::int64_t items) const {
  if (masked_rows.index < 0) return items;
  return at_or_zero(batch.masked_offsets, first + items) - at_or_zero(batch.masked_offsets, first);
}

void Model::load(Ops& ops, const Batch& batch, std::int64_t first, std::int64_t items) {
  const bool masks = masked_rows.index >= 0;
  rebase(offsets_, batch.offsets, first, items);
  masked_offsets_.clear();
  if (masks) rebase(masked_offsets_, batch.masked_offsets, first, items);
  const std::int64_t first_row = at_or_zero(batch.offsets, first);
  if (tokens.index >= 0) {
    for (std::size_t n = 0; n + 1 < offsets_.size(); ++n)
      if (offsets_[n + 1] - offsets_[n] > max_positions)
        throw Error(ExitCode::kBadData,
                    "an item of " + std::to_string(offsets_[n + 1] - offsets_[n]) +
                        " tokens, and the model has " + std::to_string(max_positions) +
                        " positions",
                    "data.text.max_length cuts items off");
    const auto rows = batch.tokens.begin() + first_row;
    const auto outside = std::find_if(rows, rows + offsets_.back(), [&](std::int32_t token) {
      return token < 0 || token >= vocabulary;
    });
    if (outside != rows + offsets_.back())
      throw Error(ExitCode::kBadData,
                  "token " + std::to_string(*outside) + ", and the model has a vocabulary of " +
                      std::to_string(vocabulary),
                  "the tokenizer does not belong to the model");
  }

  graph.set_batch(items, offsets_, masked_offsets_);
  copy_rows(ops, graph, values, batch.values, first, "values");
  copy_rows(ops, graph, tokens, batch.tokens, first_row, "tokens");
  copy_rows(ops, graph, token_types, batch.token_types, first_row, "token types");
  copy_rows(ops, graph, targets, batch.targets, first, "targets");
  if (positions.index >= 0) {
    rows_.clear();
    for (std::size_t n = 0; n + 1 < offsets_.size(); ++n)
      for (std::int64_t i = 0; i < offsets_[n + 1] - offsets_[n]; ++i)
        rows_.push_back(static_cast<std::int32_t>(i));
    copy_rows(ops, graph, positions, rows_, 0, "positions");
  }
  if (!masks) return copy_rows(ops, graph, labels, batch.labels, first, "labels");
  const std::int64_t first_masked = at_or_zero(batch.masked_offsets, first);
  rows_.assign(batch.masked_rows.begin() + first_masked,
               batch.masked_rows.begin() + first_masked + loss_terms(batch, first, items));
  for (std::int32_t& row : rows_) row -= static_cast<std::int32_t>(first_row);
  copy_rows(ops, graph, masked_rows, rows_, 0, "masked rows");
  copy_rows(ops, graph, labels, batch.masked_labels, first_masked, "masked labels");
}

Value add_dropout(Graph& graph, const std::string& name, Value x, double p) {
  return p == 0 ? x : graph.add(name, make_layer("dropout", {{"p", p}}), {x});
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

void add_cross_entropy(Model& model, double label_smoothing) {
  const bool masked = model.masked_rows.index >= 0;
  model.labels = model.graph.input("labels", {1, masked ? kMasked : 1, DType::kI32});
  model.loss = model.graph.add(
      "loss", make_layer("softmax_cross_entropy", {{"label_smoothing", label_smoothing}}),
      {model.logits, model.labels});
}

void add_classifier(Model& model, Value features, std::int64_t classes, double label_smoothing) {
  model.logits = add_linear(model.graph, "classifier", classes, features, 0.02, false);
  add_cross_entropy(model, label_smoothing);
}

std::unique_ptr<Model> build_model(const ModelOptions& options,
                                   const std::vector<std::int64_t>& item_shape,
                                   std::int64_t classes, double label_smoothing, DType dtype) {
  auto model = std::make_unique<Model>(dtype);
  if (options.type == "bert") {
    build_bert(*model, options, classes, label_smoothing);
    return model;
  }
  std::int64_t values = 1;
  for (const std::int64_t extent : item_shape) values *= extent;
  model->values = model->graph.input("values", {values, 1, DType::kF32});
  if (options.type == "vit")
    build_vit(*model, options, item_shape, classes, label_smoothing);
  else
    build_mlp(*model, options, classes, label_smoothing);
  return model;
}

}  // namespace vcas
