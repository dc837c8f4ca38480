#include "models/model.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace vcas {

std::int64_t BatchPart::rows_before(std::int64_t item, Layout layout) const {
  if (item < 0 || item > batch.items)
    throw Error(ExitCode::kBadConfig,
                "item " + std::to_string(item) + " of a batch of " + std::to_string(batch.items),
                "load items that the batch has");
  const auto at = [&](const std::vector<std::int64_t>& offsets) {
    if (offsets.empty()) return std::int64_t{0};
    if (std::ssize(offsets) != batch.items + 1)
      throw Error(ExitCode::kBadData,
                  fmt::format("{} offsets in a batch of {} items", offsets.size(), batch.items),
                  "there is one more than items: the first item that is appended adds a 0 before");
    return offsets[item];
  };
  return layout.rows(item, at(batch.offsets), at(batch.masked_offsets));
}

Value Model::input(const std::string& name, const ValueSpec& spec, ModelInput::Fill fill) {
  return inputs.emplace_back(ModelInput{graph.input(name, spec), std::move(fill)}).value;
}

void Model::load(Ops& ops, const Batch& batch, std::int64_t first, std::int64_t items) {
  const BatchPart part{batch, first, items};
  numbers_.clear();
  for (const ModelInput& input : inputs) numbers_.push_back(input.fill(part));
  const auto rebase = [&](std::vector<std::int64_t>& to, const std::vector<std::int64_t>& from,
                          Layout layout) {
    to.clear();
    if (from.empty() || std::ranges::count(graph.plan().layouts, layout) == 0) return;
    for (std::int64_t n = first; n <= first + items; ++n) to.push_back(from.at(n) - from.at(first));
  };
  rebase(offsets_, batch.offsets, Layout::tokens());
  rebase(masked_offsets_, batch.masked_offsets, Layout::masked());
  graph.set_batch(items, offsets_, masked_offsets_);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor to = graph.tensor(inputs[i].value);
    if (numbers_[i].size() != to.bytes())
      throw Error(ExitCode::kBadConfig,
                  fmt::format("input \"{}\" was filled with {} bytes, and has {} as {} {}",
                              graph.plan().nodes[inputs[i].value.index].name, numbers_[i].size(),
                              to.bytes(), dtype_name(to.dtype), to.shape.text()),
                  "its fill returns the numbers of all items of the part (models/model.h)");
    std::span<const std::byte> numbers = numbers_[i];
    const RowSet& rows = graph.full_rows().of(graph.spec(inputs[i].value).layout);
    if (rows.bound) {  // one copy, of padding too
      padded_.assign(numbers.begin(), numbers.end());
      padded_.resize(to.first_rows(rows.rows).bytes());
      numbers = padded_;
    }
    ops.copy_to_device(to.data, numbers.data(), numbers.size());
  }
  load_weights(ops, part);
}

void Model::load_weights(Ops& ops, const BatchPart& part) {
  const bool present = !part.batch.weights.empty();
  if (present && weights.index < 0)
    throw Error(ExitCode::kBadConfig, "a batch has weights of items, and the loss takes none",
                "the model adds them with add_weights (models/blocks.h)");
  if (weights.index >= 0) graph.set_present(weights, present);
  if (!present) return;
  const Tensor to = graph.tensor(weights);
  ops.copy_to_device(to.data, part.of(part.batch.weights, Layout::items(1), "weights").data(),
                     to.bytes());
}

ModelOptions with_choices(ModelOptions trained, const ModelOptions& asked,
                          const std::filesystem::path& file) {
  if (trained.kind.type != asked.kind.type)
    throw Error(ExitCode::kBadConfig,
                fmt::format("model.type is \"{}\", but {} is a {}", asked.kind.type, file.string(),
                            trained.kind.type),
                fmt::format("set model.type to \"{}\"", trained.kind.type));
  trained.kind->take_choices(*asked.kind);
  trained.pretrained = asked.pretrained;
  trained.new_classifier = asked.new_classifier;
  return trained;
}

ModelOptions read_model_options(const std::vector<std::string>& settings) {
  ModelOptions options;
  read_config(options, {.overrides = settings});
  return options;
}

// Whether a batch fills all inputs of the graph.
static void check_inputs(const Model& model) {
  const std::vector<GraphNode>& nodes = model.graph.plan().nodes;
  for (int i = 0; i < std::ssize(nodes); ++i) {
    const bool is_filled = std::ranges::any_of(model.inputs, [i](const ModelInput& input) {
      return input.value.index == i && input.fill;
    });
    if (nodes[i].layer || i == model.weights.index || is_filled) continue;
    throw Error(ExitCode::kBadConfig,
                fmt::format("input \"{}\" is filled by nothing", nodes[i].name),
                "Model::input adds one with its fill");
  }
}

std::unique_ptr<Model> build_model(const ModelOptions& options,
                                   const std::vector<std::int64_t>& item_shape,
                                   std::int64_t classes, double label_smoothing, DType dtype) {
  auto model = std::make_unique<Model>(dtype);
  options.kind->build(*model, item_shape, classes, label_smoothing);
  check_inputs(*model);
  return model;
}

}  // namespace vcas
