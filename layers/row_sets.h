// The rows that are left of a batch, in each layout of a graph.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/error.h"
#include "core/row_set.h"

namespace vcas {

// The rows of a tensor from `first` on.
inline Tensor rows_from(const Tensor& all, std::int64_t first) {
  auto* data = static_cast<std::byte*>(all.data) + first * all.width() * dtype_bytes(all.dtype);
  return {data, all.dtype, {all.rows() - first, all.width()}};
}

// A tensor of width 1 as a vector, [rows].
inline Tensor as_vector(const Tensor& column) { return column.reshaped({column.rows()}); }

// The row sets of all layouts of a graph, for the same items.
class RowSets {
 public:
  // Throws InternalError for a layout that the graph does not have.
  const RowSet& of(Layout layout) const {
    if (const RowSet* rows = find(layout)) return *rows;
    fail_check(__FILE__, __LINE__, "layout", "no value has layout " + layout.text());
  }
  const RowSet* find(Layout layout) const {  // null: the graph does not have it
    for (const Entry& entry : entries_)
      if (entry.layout == layout) return &entry.rows;
    return nullptr;
  }
  // Whether the host knows how many rows so many of the items have, whichever they are.
  bool sizes_known() const {
    return std::ranges::all_of(
        entries_, [](const Entry& entry) { return entry.rows.length > 0 || entry.rows.bound; });
  }
  std::int64_t items() const { return entries_.empty() ? 0 : entries_.front().rows.items; }

  struct Entry {
    Layout layout;
    RowSet rows;
  };
  std::vector<Entry>& entries() { return entries_; }
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

}  // namespace vcas
