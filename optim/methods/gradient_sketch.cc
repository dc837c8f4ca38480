#include "optim/methods/gradient_sketch.h"

#include <algorithm>

namespace vcas {

namespace {

void sum_halves(Exec& exec, const Tensor& halves, const Tensor& sketch) {
  const std::int64_t half = sketch.rows() / 2;
  Group<ColumnSum> sums;
  sums.add({.sum = halves.first_rows(1), .x = sketch.first_rows(half)});
  sums.add({.sum = rows_from(halves, 1), .x = rows_from(sketch, half)});
  exec.ops.run(sums);
}

}  // namespace

void GradientSketches::flush(Exec& exec) {
  if (waiting_.empty()) return;
  static const std::string place = "gradients/probe";
  exec.ops.enter(place);
  Group<RowScore> scores;
  for (const WeightUse& use : waiting_) {
    const GradientSketch& linear = linears[static_cast<std::size_t>(use.site)];
    const std::int64_t items = use.rows.items, buckets = linear.out_buckets * linear.in_buckets;
    const Tensor sketch{space.data, space.dtype, {items, buckets}};
    exec.ops.run(ItemSketch{.sketch = sketch,
                            .dy = use.dy,
                            .x_full = use.x_full,
                            .row = use.rows.row,
                            .offsets = use.rows.offsets,
                            .out_sign = linear.out_sign,
                            .in_sign = linear.in_sign,
                            .out_buckets = linear.out_buckets,
                            .patches = use.patches});
    if (linear.total) exec.ops.run(Group<ColumnSum>{ColumnSum{.sum = linear.total, .x = sketch}});
    if (linear.halves) sum_halves(exec, linear.halves, sketch);
    const std::int64_t compared = std::min(items, kMostItemsCompared);
    if (linear.gram)
      exec.ops.run(Gram{.gram = {linear.gram.data, linear.gram.dtype, {compared, compared}},
                        .x = sketch.first_rows(compared)});
    if (!linear.row_score) continue;
    VCAS_CHECK(!use.rows.row, "row scores of a sampled batch");
    const std::int64_t rows = use.rows.rows_before(compared);
    scores.add({.score = linear.row_score.range(0, rows),
                .dy = use.dy.first_rows(rows),
                .x_full = use.x_full,
                .dy_norm = use.dy_norm ? use.dy_norm.first_rows(rows) : Tensor{},
                .x_norm_full = use.x_norm_full,
                .patches = use.patches});
  }
  if (scores.size() > 0) exec.ops.run(scores);
  waiting_.clear();
}

}  // namespace vcas
