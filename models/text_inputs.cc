#include "models/text_inputs.h"

#include <fmt/format.h>

#include "models/blocks.h"

namespace vcas {
namespace {

constexpr const char* kOtherTokenizer = "the tokenizer does not belong to the model";
const ValueSpec kMaskedSpec{1, Layout::masked(), DType::kI32};

// The masked rows, counted from the first row of these items.
ModelInput::Fill masked_rows() {
  return [rows = std::vector<std::int32_t>()](const BatchPart& part) mutable {
    const std::int64_t first = part.rows_before(part.first, Layout::tokens());
    rows.clear();
    for (const std::int32_t row : part.of(part.batch.masked_rows, Layout::masked(), "masked rows"))
      rows.push_back(row - static_cast<std::int32_t>(first));
    return std::as_bytes(std::span<const std::int32_t>(rows));
  };
}

// The tokens that were there, all below `limit`.
ModelInput::Fill masked_labels(std::int64_t limit) {
  return [limit](const BatchPart& part) {
    const auto ids = part.of(part.batch.masked_labels, Layout::masked(), "masked labels");
    check_ids(ids, limit, "label", kOtherTokenizer);
    return std::as_bytes(ids);
  };
}

}  // namespace

Value add_lookup(Model& model, const std::string& name, std::int64_t entries, std::int64_t width,
                 const std::string& input, const ModelInput::Fill& fill) {
  const Value index = model.input(input, {1, Layout::tokens(), DType::kI32}, fill);
  return model.graph.add(
      name,
      make_layer("embedding",
                 {{"vocabulary", entries}, {"width", width}, {"init_std", kTransformerStd}}),
      {index});
}

ModelInput::Fill token_ids(std::vector<std::int32_t> Batch::*all, std::int64_t limit,
                           const char* what) {
  return [=](const BatchPart& part) {
    VCAS_CHECK(!part.batch.offsets.empty(), "a batch of text without offsets");
    const auto ids = part.of(part.batch.*all, Layout::tokens(), what);
    check_ids(ids, limit, what, kOtherTokenizer);
    return std::as_bytes(ids);
  };
}

ModelInput::Fill token_positions(std::int64_t limit) {
  return [limit, numbers = std::vector<std::int32_t>()](const BatchPart& part) mutable {
    numbers.clear();
    for (std::int64_t n = part.first; n < part.first + part.items; ++n) {
      const std::int64_t length = part.batch.offsets.at(n + 1) - part.batch.offsets.at(n);
      if (length > limit)
        throw Error(
            ExitCode::kBadData,
            fmt::format("an item of {} tokens, and the model has {} positions", length, limit),
            "data.text.max_length cuts items off");
      for (std::int64_t i = 0; i < length; ++i) numbers.push_back(static_cast<std::int32_t>(i));
    }
    return std::as_bytes(std::span<const std::int32_t>(numbers));
  };
}

Value add_masked_rows(Model& model, const std::string& name, Value x) {
  const Value rows = model.input("masked_rows", kMaskedSpec, masked_rows());
  return model.graph.add(name, make_layer("select_rows"), {x, rows});
}

void add_word_loss(Model& model, std::int64_t vocabulary, double label_smoothing) {
  add_cross_entropy(model, model.input("labels", kMaskedSpec, masked_labels(vocabulary)),
                    label_smoothing);
}

}  // namespace vcas
