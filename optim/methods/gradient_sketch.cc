#include "optim/methods/gradient_sketch.h"

#include <algorithm>
#include <utility>

#include "optim/methods/row_draw.h"

namespace vcas {

void GradientSketches::flush(Exec& exec) {
  if (waiting_.empty()) return;
  static const std::string place = "gradients/probe";
  exec.ops.enter(place);
  ArenaFrame frame(exec.scratch_beside);
  Group<RowScore> scores;
  DrawRows drawn;
  std::vector<KeepProbability> variances;
  std::vector<std::pair<ItemSketch, ColumnSum>> of_draws;
  for (const WeightUse& use : waiting_) {
    const GradientSketch& linear = linears[use.site];
    const std::int64_t items = use.rows.items;
    const ItemSketch sketch{.sketch = {space.data, space.dtype, {items, linear.buckets()}},
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
    const std::int64_t compared = std::min(items, kMostItemsCompared);
    if (linear.gram)
      exec.ops.run(Gram{.gram = {linear.gram.data, linear.gram.dtype, {compared, compared}},
                        .x = sketch.sketch.first_rows(compared)});
    if (!linear.row_score) continue;
    VCAS_CHECK(!use.rows.row, "row scores of a sampled batch");
    RowScore score = row_score_of(use);
    score.score = linear.row_score.range(0, score.dy.rows());
    if (linear.drawn_ratio >= 1) {
      scores.add(score);
      continue;
    }
    // Training draws with repeat 0.
    RowDraw rows = row_draw(exec, score, linear.drawn_ratio, Selection::kSystematic,
                            exec.key(Stream::kWeight, static_cast<std::uint32_t>(use.site), 1));
    rows.probability.variance = linear.drawn_variance;
    drawn.scores.add(score);
    drawn.draws.add(rows.draw);
    variances.push_back(rows.probability);
    ItemSketch of_draw = sketch;
    of_draw.offsets = {};
    of_draw.kept = rows.draw.kept;
    of_draw.scale = rows.draw.scale;
    of_draw.count = rows.draw.count;
    of_draws.push_back({of_draw, {.sum = linear.drawn, .x = of_draw.sketch}});
  }
  waiting_.clear();
  if (scores.size() > 0) exec.ops.run(scores);
  if (drawn.draws.size() > 0) exec.ops.run(drawn);
  for (const auto& [sketch, sum] : of_draws) {
    exec.ops.run(sketch);
    exec.ops.run(Group<ColumnSum>{sum});
  }
  for (const KeepProbability& variance : variances) exec.ops.run(variance);
}

}  // namespace vcas
