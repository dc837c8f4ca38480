// SampleA: keeps a sample of items of the gradient at one edge of the graph (docs/sampling.md).
#pragma once

#include "kernels/buffer.h"
#include "layers/layer.h"

namespace vcas {

class SampleGate {
 public:
  // Has memory for at most max_items items of every layout. `max_rows` matches `layouts`.
  SampleGate(Ops& ops, DType dtype, int number, std::int64_t rows_per_item, std::int64_t max_items,
             const std::vector<std::int64_t>& layouts, const std::vector<std::int64_t>& max_rows);

  // Draws the items to keep and makes their row sets. `dy` holds the rows `rows`.
  // P(item) is proportional to the item's gradient norm, capped, with sum N * ratio.
  // The host knows how many items a systematic draw keeps.
  // If all items have as many rows, it knows their rows too. Otherwise it waits once for the draw.
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

  // The rows of the drawn items, in every layout.
  void narrow(Ops& ops, const RowSets& rows, std::int64_t kept);

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
