#include "optim/methods/row_draw.h"

#include <algorithm>

namespace vcas {

RowScore row_score_of(const WeightUse& use) {
  return {.dy = use.dy,
          .x_full = use.x_full,
          .row = use.rows.row,
          .dy_norm = use.dy_norm,
          .x_norm_full = use.x_norm_full,
          .filled = use.rows.filled(),
          .patches = use.patches};
}

RowDraw row_draw(Exec& exec, const RowScore& score, double ratio, Selection selection,
                 const RandomKey& key) {
  const DType statistics = statistics_dtype(exec.dtype);
  const std::int64_t rows = score.dy.rows();
  const bool systematic = selection == Selection::kSystematic;
  const double most = budget_of(ratio, rows, systematic);
  const double budget = score.filled ? ratio : most;
  const std::int64_t kept = systematic ? std::min(rows, static_cast<std::int64_t>(most)) : rows;
  const bool counts = !systematic || score.filled;
  const Tensor prob = exec.scratch_beside.take(statistics, {rows});
  return {.probability = {.prob = prob,
                          .score = score.score,
                          .budget = budget,
                          .filled = score.filled,
                          .whole = systematic},
          .draw = {.kept = exec.scratch_beside.take(DType::kI32, {kept}),
                   .scale = exec.scratch_beside.take(statistics, {kept}),
                   .count = counts ? exec.scratch_beside.take(DType::kI32, {1}) : Tensor{},
                   .prob = prob,
                   .score = score.score,
                   .id = score.row,
                   .budget = budget,
                   .filled = score.filled,
                   .selection = selection,
                   .key = key,
                   .step = exec.step},
          .expected = std::min(most, static_cast<double>(rows))};
}

}  // namespace vcas
