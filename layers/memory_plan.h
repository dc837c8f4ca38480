// Places blocks of known size and lifetime in one buffer.
#pragma once

#include <cstddef>
#include <vector>

namespace vcas {

struct PlannedBlock {
  std::size_t bytes = 0;
  int begin = 0;  // first and last time of use, inclusive
  int end = 0;
  std::size_t offset = 0;  // result
};

// Sets every offset, in multiples of Arena::kAlignment. Blocks alive together do not overlap.
// Large blocks come first, each at the lowest free place. Returns the bytes of the whole buffer.
std::size_t plan_memory(std::vector<PlannedBlock>& blocks);

}  // namespace vcas
