// Parts of a dataset: evaluation data held out of the training data, and fewer items than there
// are.
#pragma once

#include <cstdint>
#include <memory>

#include "data/dataset.h"

namespace vcas {

struct ValidationSplit {
  std::unique_ptr<Dataset> train, validation;  // their items keep the order of the whole
};

// Holds out `share` of the items, rounded, and that of each class within one item. Which ones
// depends on (seed, labels) alone. Throws kBadConfig where one of the two would be empty.
ValidationSplit split_off(std::unique_ptr<Dataset> whole, double share, std::uint64_t seed);

// `count` of the items, in the order of the whole, and of each class its share within one item.
// They are the same at every seed, so results on them compare. All: `count` is 0 or too large.
std::unique_ptr<Dataset> subset_of(std::unique_ptr<Dataset> whole, std::int64_t count);

}  // namespace vcas
