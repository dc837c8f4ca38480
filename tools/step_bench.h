// `vcas bench`: whole steps, exact and sampled in turns.
#pragma once

#include <cstdint>

#include "tools/run_config.h"

namespace vcas {

struct BenchRequest {
  std::int64_t steps = 20;
  bool fixed = false;
  bool json = false;
};

// Prints to stdout.
void bench_steps(const LoadedConfig& loaded, const BenchRequest& request);

}  // namespace vcas
