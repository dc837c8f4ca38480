// SampleA: keeps a sample of items of the gradient at one edge of the graph (docs/sampling.md).
#pragma once

#include <span>

#include "data/batch.h"
#include "kernels/buffer.h"
#include "layers/graph.h"
#include "optim/methods/item_threshold.h"

namespace vcas {

// How one backward draws.
struct DrawSettings {
  double ratio = 1;  // of all items of the batch
  Selection selection = Selection::kSystematic;
  std::uint32_t repeat = 0;  // addresses the draw (core/philox.h)
  bool per_token = false;    // scores: norms over the root of the items' tokens
  std::int64_t echoes = 0;   // of dropped items, at each layer that mixes items
  // Has the number of items that are kept follow their scores, with `ratio` as its mean.
  // Null: it is the same for all batches.
  ItemThreshold* threshold = nullptr;
  bool moves_threshold = false;
};

// ||G_i||_F of the items of `dy`, which has the rows `rows` of this layout.
// Per token: divided by sqrt(T_i), where the graph has tokens.
ItemNorm item_scores(const Tensor& norm, const Tensor& dy, const RowSets& rows, Layout layout,
                     bool per_token);

class SampleGate {
 public:
  // Has memory for the items and rows that `plan` allows.
  SampleGate(Ops& ops, const GraphPlan& plan);

  // Draws the items to keep and makes their row sets. `dy` holds the rows `rows`.
  // P(item) is proportional to the item's score, capped, with sum N * ratio.
  // The host knows how many items a systematic draw keeps.
  // If all items have as many rows, or the batch has padding, it knows their rows too.
  // Otherwise it waits once for the draw, and with a threshold for the scores.
  // Returns the kept rows, then those behind each mixing layer (BackwardHooks::at_gate).
  std::span<const RowSets> draw(Exec& exec, const DrawSettings& settings, const GateSite& site,
                                const Tensor& dy, const RowSets& rows);

  // The same for a choice that the host has made among the items of `rows`.
  // Its weights stand for 1/p.
  std::span<const RowSets> keep(Ops& ops, const RowSets& rows, const ItemChoice& choice);

  // The kept rows of dy, each times 1/p of its item, and their norms if wanted.
  // They lie in site.kept, or stay where they are if the site gathers.
  Gradient compact(Exec& exec, const GateSite& site, const Tensor& dy) const;

  std::size_t bytes() const { return buffer_.bytes(); }

 private:
  // The kept rows in one layout.
  struct KeptRows {
    Layout layout;
    Tensor item, scale, offsets, row, source_row, row_scale;  // capacities
    std::vector<std::int64_t> host_offsets;
  };

  // How many of these items to keep, for `target` of them in the mean.
  double by_threshold(Ops& ops, const DrawSettings& settings, const Tensor& score, double target);
  void draw_echoes(Exec& exec, const DrawSettings& settings, const GateSite& site,
                   const RowSet& own, std::int64_t kept);
  // Sets prefixes_ to the rows of the drawn items in every layout, each time with so many of
  // echoes_. Returns what makes them.
  Group<NarrowRows> narrowing(const RowSets& rows, std::int64_t kept);
  Tensor kept_items(std::int64_t kept) const {
    return {drawn_.ptr<std::int32_t>() + 1, DType::kI32, {kept}};
  }

  Buffer buffer_;
  Tensor norm_, prob_, keep_scale_;
  Tensor drawn_;  // i32 [1 + items]: how many are kept, and which
  Tensor echo_;   // i32 [items]
  std::vector<std::int32_t> host_drawn_;
  std::vector<std::byte> host_bytes_;
  std::vector<double> host_score_;
  std::vector<KeptRows> layouts_;
  std::vector<RowSets> prefixes_;           // the kept rows, then with more and more echoes
  std::vector<std::int64_t> echoes_ = {0};  // of each prefix
};

}  // namespace vcas
