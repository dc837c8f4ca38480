#include "models/model.h"

#include <algorithm>
#include <span>

#include "core/error.h"

namespace vcas {
namespace {

template <class T>
std::span<const T> part_of(const std::vector<T>& all, std::int64_t first, std::int64_t count,
                           const char* what) {
  VCAS_CHECK(first >= 0 && count >= 0 && first + count <= std::ssize(all),
             std::to_string(count) + " " + what + " from " + std::to_string(first) +
                 " on, of a batch of " + std::to_string(all.size()));
  return {all.data() + first, static_cast<std::size_t>(count)};
}

template <class T>
void copy_to(Ops& ops, const Tensor& to, std::span<const T> from) {
  VCAS_CHECK(from.size_bytes() == to.bytes(),
             std::to_string(from.size()) + " numbers for " + to.shape.text());
  ops.copy_to_device(to.data, from.data(), to.bytes());
}

// Throws Error(kBadData) for an id outside [0, limit).
void check_ids(std::span<const std::int32_t> ids, std::int64_t limit, const char* what,
               const char* hint = "the tokenizer does not belong to the model") {
  for (const std::int32_t id : ids)
    if (id < 0 || id >= limit)
      throw Error(ExitCode::kBadData,
                  std::string(what) + " " + std::to_string(id) + ", and the model knows " +
                      std::to_string(limit),
                  hint);
}

// to = from[first .. first + items] less its first; empty where `from` is.
void rebase(std::vector<std::int64_t>& to, const std::vector<std::int64_t>& from,
            std::int64_t first, std::int64_t items) {
  to.clear();
  if (from.empty()) return;
  for (auto n = static_cast<std::size_t>(first); n <= static_cast<std::size_t>(first + items); ++n)
    to.push_back(from.at(n) - from[first]);
}

std::int64_t at_or_zero(const std::vector<std::int64_t>& offsets, std::int64_t n) {
  return offsets.empty() ? 0 : offsets.at(n);
}

}  // namespace

std::int64_t Model::loss_terms(const Batch& batch, std::int64_t first, std::int64_t items) const {
  if (masked_rows.index < 0) return items;
  return at_or_zero(batch.masked_offsets, first + items) - at_or_zero(batch.masked_offsets, first);
}

void Model::load(Ops& ops, const Batch& batch, std::int64_t first, std::int64_t items) {
  rebase(offsets_, batch.offsets, first, items);
  masked_offsets_.clear();
  if (masked_rows.index >= 0) rebase(masked_offsets_, batch.masked_offsets, first, items);
  if (tokens.index >= 0) check_tokens(batch, at_or_zero(batch.offsets, first));
  graph.set_batch(items, offsets_, masked_offsets_);
  if (values.index >= 0) load_values(ops, batch, first);
  if (tokens.index >= 0) load_tokens(ops, batch, at_or_zero(batch.offsets, first));
  load_labels(ops, batch, first, items);
  load_weights(ops, batch, first, items);
}

void Model::check_tokens(const Batch& batch, std::int64_t first_row) const {
  VCAS_CHECK(!offsets_.empty(), "a batch of text without offsets");
  for (std::size_t n = 0; n + 1 < offsets_.size(); ++n)
    if (offsets_[n + 1] - offsets_[n] > max_positions)
      throw Error(ExitCode::kBadData,
                  "an item of " + std::to_string(offsets_[n + 1] - offsets_[n]) +
                      " tokens, and the model has " + std::to_string(max_positions) + " positions",
                  "data.text.max_length cuts items off");
  check_ids(part_of(batch.tokens, first_row, offsets_.back(), "tokens"), vocabulary, "token");
  check_ids(part_of(batch.token_types, first_row, offsets_.back(), "text types"), type_vocabulary,
            "text type");
}

void Model::load_values(Ops& ops, const Batch& batch, std::int64_t first) {
  const Tensor to = graph.tensor(values);
  const auto given = part_of(batch.values, first * to.width(), to.elements(), "values");
  if (to.dtype != DType::kBF16) return copy_to(ops, to, given);
  values_.clear();
  for (const float value : given) values_.emplace_back(value);
  copy_to(ops, to, std::span<const bfloat16>(values_));
}

void Model::load_tokens(Ops& ops, const Batch& batch, std::int64_t first_row) {
  const std::int64_t rows = offsets_.back();
  copy_to(ops, graph.tensor(tokens), part_of(batch.tokens, first_row, rows, "tokens"));
  copy_to(ops, graph.tensor(token_types),
          part_of(batch.token_types, first_row, rows, "text types"));
  rows_.clear();
  for (std::size_t n = 0; n + 1 < offsets_.size(); ++n)
    for (std::int64_t i = 0; i < offsets_[n + 1] - offsets_[n]; ++i)
      rows_.push_back(static_cast<std::int32_t>(i));
  copy_to(ops, graph.tensor(positions), std::span<const std::int32_t>(rows_));
}

void Model::load_labels(Ops& ops, const Batch& batch, std::int64_t first, std::int64_t items) {
  if (masked_rows.index >= 0) {
    const std::int64_t from = at_or_zero(batch.masked_offsets, first);
    const std::int64_t count = loss_terms(batch, first, items);
    const std::int64_t first_row = at_or_zero(batch.offsets, first);
    rows_.clear();
    for (const std::int32_t row : part_of(batch.masked_rows, from, count, "masked rows"))
      rows_.push_back(row - static_cast<std::int32_t>(first_row));
    copy_to(ops, graph.tensor(masked_rows), std::span<const std::int32_t>(rows_));
    copy_to(ops, graph.tensor(labels), part_of(batch.masked_labels, from, count, "masked labels"));
  } else if (targets.index >= 0) {
    targets_.assign(static_cast<std::size_t>(items), 0.0f);
    if (!batch.targets.empty())
      std::ranges::copy(part_of(batch.targets, first, items, "targets"), targets_.begin());
    copy_to(ops, graph.tensor(targets), std::span<const float>(targets_));
  } else {
    rows_.clear();
    for (const std::int32_t label : part_of(batch.labels, first, items, "labels"))
      rows_.push_back(std::max(label, 0));
    check_ids(rows_, graph.spec(logits).width, "label",
              "the classes of the data are not those of the model");
    copy_to(ops, graph.tensor(labels), std::span<const std::int32_t>(rows_));
  }
}

void Model::load_weights(Ops& ops, const Batch& batch, std::int64_t first, std::int64_t items) {
  const bool present = !batch.weights.empty();
  VCAS_CHECK(!present || weights.index >= 0, "weights of items, and the loss takes none");
  if (weights.index >= 0) graph.set_present(weights, present);
  if (present) copy_to(ops, graph.tensor(weights), part_of(batch.weights, first, items, "weights"));
}

void ModelOptions::validate(ConfigErrors& errors) const {
  if (pretrained.empty() || kind->hugging_face()) return;
  std::string types;
  for (const auto& [type, registered] : part_kinds<ModelKind>())
    if (registered.make()->hugging_face()) types += (types.empty() ? "\"" : " or \"") + type + "\"";
  errors.add({"pretrained", "type"}, "needs model.type " + types);
}

ModelOptions read_model_options(const std::vector<std::string>& settings) {
  ModelOptions options;
  read_config(options, {.overrides = settings});
  return options;
}

std::unique_ptr<Model> build_model(const ModelOptions& options,
                                   const std::vector<std::int64_t>& item_shape,
                                   std::int64_t classes, double label_smoothing, DType dtype) {
  auto model = std::make_unique<Model>(dtype);
  options.kind->build(*model, item_shape, classes, label_smoothing);
  return model;
}

}  // namespace vcas
