#include "optim/methods/gradient_sketch.h"

#include <algorithm>

#include "optim/methods/row_draw.h"

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
  ArenaFrame frame(exec.scratch_beside);
  Group<RowScore> scores;
  DrawRows drawn;
  std::vector<KeepProbability> variances;
  std::vector<ItemSketch> of_draws;
  for (const WeightUse& use : waiting_) {
    const GradientSketch& linear = linears[static_cast<std::size_t>(use.site)];
    const std::int64_t items = use.rows.items, buckets = linear.out_buckets * linear.in_buckets;
    const ItemSketch sketch{.sketch = {space.data, space.dtype, {items, buckets}},
                            .dy = use.dy,
                            .x_full = use.x_full,
                            .row = use.rows.row,
                            .offsets = use.rows.offsets,
                            .out_sign = linear.out_sign,
                            .in_sign = linear.in_sign,
                            .out_buckets = linear.out_buckets,
                            .patches = use.patches};
    exec.ops.run(sketch);
    if (linear.total)
      exec.ops.run(Group<ColumnSum>{ColumnSum{.sum = linear.total, .x = sketch.sketch}});
    if (linear.halves) sum_halves(exec, linear.halves, sketch.sketch);
    const std::int64_t compared = std::min(items, kMostItemsCompared);
    if (linear.gram)
      exec.ops.run(Gram{.gram = {linear.gram.data, linear.gram.dtype, {compared, compared}},
                        .x = sketch.sketch.first_rows(compared)});
    if (!linear.row_score) continue;
    VCAS_CHECK(!use.rows.row, "row scores of a sampled batch");
    RowScore score = row_score(use);
    score.score = linear.row_score.range(0, score.dy.rows());
    if (linear.drawn_ratio >= 1) {
      scores.add(score);
      continue;
    }
    // The first repeat is not that of training.
    RowDraw rows = row_draw(exec, score, linear.drawn_ratio, Selection::kSystematic,
                            exec.key(Stream::kWeight, static_cast<std::uint32_t>(use.site), 1));
    rows.probability.variance = linear.drawn_variance;
    drawn.scores.add(score);
    drawn.draws.add(rows.draw);
    variances.push_back(rows.probability);
    ItemSketch& of_draw = of_draws.emplace_back(sketch);
    of_draw.sketch = linear.drawn.reshaped({1, buckets});
    of_draw.offsets = {};
    of_draw.kept = rows.draw.kept;
    of_draw.scale = rows.draw.scale;
    of_draw.count = rows.draw.count;
  }
  waiting_.clear();
  if (scores.size() > 0) exec.ops.run(scores);
  if (drawn.draws.size() > 0) exec.ops.run(drawn);
  for (const ItemSketch& sketch : of_draws) exec.ops.run(sketch);
  for (const KeepProbability& variance : variances) exec.ops.run(variance);
}

}  // namespace vcas
