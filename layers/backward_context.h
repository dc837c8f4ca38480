// The state of one backward pass: what to sample, with which ratios, and where gradients go.
#pragma once

#include <cmath>
#include <vector>

#include "core/row_set.h"
#include "kernels/args.h"

namespace vcas {

// The row sets of all layouts of a graph, for the same items.
class RowSets {
 public:
  // Throws InternalError for a layout that the graph does not have.
  const RowSet& of(std::int64_t rows_per_item) const {
    for (const Entry& entry : entries_)
      if (entry.rows_per_item == rows_per_item) return entry.rows;
    fail_check(__FILE__, __LINE__, "layout",
               "no value has " + std::to_string(rows_per_item) + " rows per item");
  }
  std::int64_t items() const { return entries_.empty() ? 0 : entries_.front().rows.items; }

  struct Entry {
    std::int64_t rows_per_item;
    RowSet rows;
  };
  std::vector<Entry>& entries() { return entries_; }
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

// How many rows systematic selection keeps for a budget: the budget rounded up.
// A budget one ulp above a whole number, as n / N times N may be, is not rounded up.
inline double whole_budget(double budget) { return std::ceil(budget * (1 - 1e-12)); }

enum class SamplingMode {
  kExact,
  kItems,         // SampleA only
  kItemsAndRows,  // SampleA and SampleW
};

// Some entries of one weight gradient: the block of rows `out_index` and columns `in_index`.
// `half` is its part from the first half of the items (RowSet::half), in exact passes only.
struct EntryBlock {
  Tensor block;      // statistics dtype [A, B]; empty = not wanted
  Tensor half;       // statistics dtype [A, B]; empty = not wanted
  Tensor out_index;  // i32 [A]
  Tensor in_index;   // i32 [B]
};

// Where parameter gradients go. Both are indexed by parameter. An empty tensor is not wanted.
struct GradSink {
  std::vector<Tensor> full;
  std::vector<EntryBlock> blocks;
};

// What a pass saw, for the controller, logs and tests. Empty fields are not filled.
// Statistics stay in device memory, so that no pass waits. The host has the sizes.
struct BackwardRecord {
  std::vector<Tensor> item_norm;         // [gate], S [N] or more: ||G_i(l)||_F, exact passes only
  Tensor weight_variance;                // f64 [sampled linear]: at weight_ratio (Eq. 3)
  std::vector<std::int64_t> kept_items;  // [gate]
  std::vector<std::int64_t> kept_rows;   // [sampled linear]; -1: of an independent draw
};

struct BackwardContext {
  const GradSink* sink = nullptr;  // never null in a pass
  bool adds_gradients = true;      // to what sink->full holds; else they replace it
  SamplingMode mode = SamplingMode::kExact;
  Selection selection = Selection::kSystematic;
  std::vector<double> act_ratio;     // rho [gate], from input to output
  std::vector<double> weight_ratio;  // nu [sampled linear]
  std::uint32_t repeat = 0;          // Monte-Carlo repeat; 0 = training
  double loss_scale = 1;             // multiplies the sum of the item losses: 1 / items of the step
  BackwardRecord* record = nullptr;
};

}  // namespace vcas
