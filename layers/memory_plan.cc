#include "layers/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "core/arena.h"

namespace vcas {

std::size_t plan_memory(std::vector<PlannedBlock>& blocks) {
  std::vector<std::size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  std::size_t total = 0;
  std::vector<const PlannedBlock*> placed;
  for (const std::size_t index : order) {
    PlannedBlock& block = blocks[index];
    std::ranges::sort(placed, {}, &PlannedBlock::offset);
    block.offset = 0;
    for (const PlannedBlock* other : placed) {
      if (other->end < block.begin || block.end < other->begin) continue;
      if (block.offset + block.bytes <= other->offset) break;
      block.offset = std::max(block.offset, Arena::round_up(other->offset + other->bytes));
    }
    placed.push_back(&block);
    total = std::max(total, Arena::round_up(block.offset + block.bytes));
  }
  return total;
}

}  // namespace vcas
