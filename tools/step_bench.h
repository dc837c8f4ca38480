// `vcas bench`: whole steps, exact and sampled in turns.
#pragma once

#include <cstdint>

#include "tools/run_config.h"

namespace vcas {

struct BenchRequest {
  std::int64_t steps = 20;
  bool one_branch = false;  // CountOps::set_one_branch
  std::int64_t pad_to = 0;  // tokens; also times exact steps of items filled up to them; 0: no
  bool json = false;
};

// The sampled steps keep fixed ratios: those of the configuration, else 0.2 to 0.5 of the items and
// 0.5 of the rows. Prints to stdout.
void bench_steps(const LoadedConfig& loaded, const BenchRequest& request);

}  // namespace vcas
