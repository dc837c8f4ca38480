// What a layer computes with: operations, scratch memory, randomness of this step.
#pragma once

#include <cstdint>
#include <optional>

#include "core/arena.h"
#include "core/philox.h"
#include "kernels/ops.h"

namespace vcas {

struct Exec {
  Ops& ops;
  Arena& scratch;
  Arena& scratch_beside;      // of operations given to Ops::beside
  DType dtype = DType::kF32;  // compute dtype
  std::uint64_t seed = 0;
  Tensor step;           // i64 [1]: number of the batch, counting accumulated ones
  bool training = true;  // dropout acts
  // Forward brings the state of layers up to date (NodePlan::state): in a pass of training alone.
  bool updates_state = false;
  // Forward also keeps the norms of the rows that sampled linears read.
  // Sampled backwards then need not read those rows for them.
  // A forward and its backwards have one value.
  bool keeps_norms = false;
  std::uint32_t site = 0;  // node that runs now: addresses its dropout
  // Left to the node that runs next, which computes it together with its own.
  std::optional<Dropout> sum = {};             // of a forward (ForwardIo::leaves_sum)
  std::optional<LayerNormBackward> norm = {};  // of a backward (BackwardIo::leaves_dx)

  // For an operation that is given `step` too.
  RandomKey key(Stream stream, std::uint32_t at_site, std::uint32_t repeat = 0) const {
    return {.seed = seed, .stream = stream, .site = at_site, .repeat = repeat};
  }
};

}  // namespace vcas
