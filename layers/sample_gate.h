// SampleA: keeps a sample of items of the gradient at one edge of the graph (docs/sampling.md).
#pragma once

#include "kernels/buffer.h"
#include "layers/layer.h"

namespace vcas {

class SampleGate {
 public:
  // Memory for at most max_items items of every layout in `full`; `max_rows` matches
  // full.entries().
  SampleGate(Ops& ops, DType dtype, int number, std::int64_t rows_per_item, std::int64_t max_items,
             const std::vector<std::int64_t>& layouts, const std::vector<std::int64_t>& max_rows);

  // Draws the items to keep: P(item) proportional to its gradient norm, capped, with sum
  // N * ratio, and makes the row sets of the kept items. `dy` holds the rows `rows`. The host knows
  // how many items a systematic draw keeps, and how many rows where all items have as many; else it
  // waits once for what was drawn.
  const RowSets& draw(Exec& exec, const BackwardContext& context, const Tensor& dy,
                      const RowSets& rows, std::int64_t batch_items);

  // dy_kept = the kept rows of dy, each times 1/p of its item; and their norms, where wanted.
  void compact(Exec& exec, const Tensor& dy, const Tensor& dy_kept,
               const Tensor& dy_kept_norm) const;

  std::size_t bytes() const { return buffer_.bytes(); }

 private:
  struct Layout {
    std::int64_t rows_per_item;
    Tensor item, scale, offsets, row, source_row;  // capacities
    std::vector<std::int64_t> host_offsets;
  };

  int number_;
  std::int64_t rows_per_item_;
  Buffer buffer_;
  Tensor norm_, prob_, keep_scale_;
  Tensor drawn_;  // i32 [1 + items]: how many are kept, and which
  std::vector<std::int32_t> host_drawn_;
  std::vector<Layout> layouts_;
  RowSets kept_rows_;
};

}  // namespace vcas
