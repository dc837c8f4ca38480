// How many rows so many items of a batch of texts have at most.
#pragma once

#include <cstdint>
#include <vector>

namespace vcas {

// Rounded up, so that other batches have the same bound
// (docs/kernels.md#texts-of-different-lengths). Kept are the longest items, if the worst comes.
struct RowBound {
  std::int64_t items = 0;
  std::int64_t rows = 0;               // of all items
  std::int64_t half = 0, quarter = 0;  // of the longest ones: of this part of the items

  RowBound() = default;
  // `lengths`: rows of the items. Rounding goes to `most` at most.
  RowBound(std::vector<std::int64_t> lengths, std::int64_t most);
  bool operator==(const RowBound&) const = default;

  // The bound for `kept` items, whichever they are.
  std::int64_t of(std::int64_t kept) const;
};

}  // namespace vcas
