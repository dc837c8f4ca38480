// What one training step needs from the data, packed, in host memory. The only header of data/ that
// models/ and optim/ include.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"

namespace vcas {

struct Batch {
  std::int64_t items = 0;             // N
  std::int64_t dropped = 0;           // of an equal share, items that were left out (ItemChooser)
  std::vector<std::int64_t> offsets;  // [N + 1] rows of each item; empty where all items are equal
                                      // in size: the model knows its tokens per item
  std::vector<float> values;          // normalised [N, channels, height, width] or [N, width]
  std::vector<std::int32_t> tokens;   // [R] token ids, packed
  std::vector<std::int32_t> token_types;     // [R] 0 = first text of the item, 1 = second
  std::vector<std::int32_t> labels;          // [N], -1 where unknown
  std::vector<float> targets;                // [N] of a regression
  std::vector<std::int64_t> masked_offsets;  // [N + 1] masked positions of each item; empty where
                                             // nothing is masked
  std::vector<std::int32_t> masked_rows;     // [P] row of each masked position in the packed batch
  std::vector<std::int32_t> masked_labels;   // [P] the token id that was there
  std::vector<float> weights;                // [N] of the items' losses; empty: all 1
  std::vector<std::int64_t> ids;             // [N] number of the item in the dataset

  // Empty again, capacity kept: a batch that is filled anew allocates nothing.
  void clear() {
    items = dropped = 0;
    offsets.clear();
    values.clear();
    tokens.clear();
    token_types.clear();
    labels.clear();
    targets.clear();
    masked_offsets.clear();
    masked_rows.clear();
    masked_labels.clear();
    weights.clear();
    ids.clear();
  }
};

// Which of a step's items are computed.
struct ItemChoice {
  std::vector<std::int64_t> kept;  // positions among the step's items, ascending
  std::vector<float> weights;      // of those; empty: all 1
};

// Throws Error(kBadConfig) for what is no choice among so many items.
inline void check_choice(const ItemChoice& choice, std::int64_t items) {
  const auto wrong = [](const std::string& fault) {
    throw Error(ExitCode::kBadConfig, "a choice of items with " + fault,
                "correct what the method chooses: ItemChoice in data/batch.h");
  };
  const std::vector<std::int64_t>& kept = choice.kept;
  const std::vector<float>& weights = choice.weights;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const auto text = [&] { return "kept[" + std::to_string(i) + "] " + std::to_string(kept[i]); };
    if (kept[i] < 0 || kept[i] >= items) wrong(text() + " of " + std::to_string(items) + " items");
    if (i > 0 && kept[i] <= kept[i - 1]) wrong(text() + " after " + std::to_string(kept[i - 1]));
  }
  if (!weights.empty() && weights.size() != kept.size())
    wrong(std::to_string(weights.size()) + " weights of " + std::to_string(kept.size()) + " items");
  for (std::size_t i = 0; i < weights.size(); ++i)
    if (!std::isfinite(weights[i]))
      wrong("weights[" + std::to_string(i) + "] " + std::to_string(weights[i]));
}

// Leaves items out of batches before they are read.
class ItemChooser {
 public:
  virtual ~ItemChooser() = default;
  // `items`: numbers in the dataset of the items of step `step`.
  // `rows`: what each costs (Dataset::rows).
  // Throws Error(kBadConfig) for no choice, or one of no items.
  ItemChoice choose(std::int64_t step, std::span<const std::int64_t> items,
                    std::span<const std::int64_t> rows) {
    asked_ = true;
    ItemChoice choice = choose_items(step, items, rows);
    check_choice(choice, std::ssize(items));
    if (choice.kept.empty())
      throw Error(ExitCode::kBadConfig, "a choice of no items before the forward",
                  "a forward needs an item: ItemChooser::choose_items keeps at least one");
    return choice;
  }
  bool asked() const { return asked_; }  // ever

 private:
  virtual ItemChoice choose_items(std::int64_t step, std::span<const std::int64_t> items,
                                  std::span<const std::int64_t> rows) = 0;

  bool asked_ = false;
};

// Where a trainer gets its batches from.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // The next batch, valid until the following call.
  virtual const Batch& next() = 0;
};

}  // namespace vcas
