// `vcas check`: are the gradients right, on the user's own model and data?
#pragma once

#include <cstdint>

#include "tools/run_config.h"

namespace vcas {

struct CheckRequest {
  std::int64_t draws = 64;  // of each kind of sampling
  std::int64_t steps = 0;   // of exact training before
  double ratio = 0.5;       // of items and rows that are kept
  bool all = false;         // shows all tensors, not the worst
};

// Prints a table and a verdict to stdout. Throws kInternal for gradients that are wrong.
void check_gradients(const LoadedConfig& loaded, const CheckRequest& request);

}  // namespace vcas
