#include "layers/weight_sampler.h"

#include <algorithm>

namespace vcas {

void accumulate_weight_gradient(Exec& exec, const BackwardIo& io, const Tensor& dy,
                                const Tensor& x_full, const RowSet& rows) {
  const BackwardContext& context = io.context;
  const Tensor dweight = io.gradient(0);
  const auto parameter = static_cast<std::size_t>(io.parameter_numbers[0]);
  if (!context.sink->blocks.empty() && context.sink->blocks[parameter].block) {
    const EntryBlock& entries = context.sink->blocks[parameter];
    LinearWeightBlock args{.block = entries.block,
                           .dy = dy,
                           .x_full = x_full,
                           .row = rows.row,
                           .out_index = entries.out_index,
                           .in_index = entries.in_index};
    exec.ops.run(args);
    if (entries.half) {
      VCAS_CHECK(!rows.row, "half of a sampled batch");
      args.block = entries.half;
      args.dy.shape = {rows.half, dy.width()};
      args.x_full.shape = {rows.half, x_full.width()};
      exec.ops.run(args);
    }
  }

  const bool sampled_site = io.weight_site >= 0 && context.mode != SamplingMode::kExact;
  const auto site = static_cast<std::size_t>(io.weight_site);
  const double ratio = sampled_site ? context.weight_ratio[site] : 1.0;
  const bool draw = context.mode == SamplingMode::kItemsAndRows && ratio < 1.0;
  const bool variance_wanted =
      sampled_site && context.record && !context.record->weight_variance.empty();
  if (sampled_site && context.record && !context.record->kept_rows.empty())
    context.record->kept_rows[site] = rows.rows;

  if (!draw && dweight)
    exec.ops.run(
        LinearBackwardWeight{.dweight = dweight, .dy = dy, .x_full = x_full, .row = rows.row});
  if (!(draw && dweight) && !variance_wanted) return;

  ArenaFrame frame(exec.scratch);
  const DType statistics = statistics_dtype(exec.dtype);
  const Tensor score = exec.scratch.take(statistics, {rows.rows});
  const Tensor prob = exec.scratch.take(statistics, {rows.rows});
  exec.ops.run(RowScore{.score = score, .dy = dy, .x_full = x_full, .row = rows.row});
  const bool systematic = context.selection == Selection::kSystematic;
  double budget = ratio * static_cast<double>(rows.rows);
  if (systematic) budget = whole_budget(budget);
  if (variance_wanted) {
    const Tensor variance = exec.scratch.take(DType::kF64, {1});
    exec.ops.run(
        KeepProbability{.prob = prob, .variance = variance, .score = score, .budget = budget});
    exec.ops.copy_to_host(&context.record->weight_variance[site], variance.data, sizeof(double));
  }
  if (!(draw && dweight)) return;

  const std::int64_t most =
      systematic ? std::min(rows.rows, static_cast<std::int64_t>(budget)) : rows.rows;
  Tensor kept = exec.scratch.take(DType::kI32, {most});
  Tensor scale = exec.scratch.take(statistics, {most});
  const Tensor count = systematic ? Tensor{} : exec.scratch.take(DType::kI32, {1});
  exec.ops.run(Draw{
      .kept = kept,
      .scale = scale,
      .count = count,
      .prob = prob,
      .score = score,
      .id = rows.row,
      .budget = budget,
      .selection = context.selection,
      .key = exec.key(Stream::kWeight, static_cast<std::uint32_t>(io.weight_site), context.repeat),
      .step = exec.step});
  if (count) {
    std::int32_t drawn = 0;
    exec.ops.copy_to_host(&drawn, count.data, sizeof drawn);
    kept.shape = scale.shape = {drawn};
  }
  exec.ops.run(LinearBackwardWeight{.dweight = dweight,
                                    .dy = dy,
                                    .x_full = x_full,
                                    .row = rows.row,
                                    .kept = kept,
                                    .scale = scale});
  if (context.record && !context.record->kept_rows.empty())
    context.record->kept_rows[site] = kept.elements();
}

std::size_t weight_sampler_scratch_bytes(std::int64_t max_rows) {
  const auto rows = static_cast<std::size_t>(max_rows);
  return 3 * Arena::round_up(rows * sizeof(double)) + Arena::round_up(rows * sizeof(std::int32_t)) +
         2 * Arena::kAlignment;
}

}  // namespace vcas
