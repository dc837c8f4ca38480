// Evaluation data for those who have none: items held out of the training data.
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

}  // namespace vcas
