#include "layers/weight_sampler.h"

#include <algorithm>

namespace vcas {

void WeightSampler::add(Exec& exec, const BackwardIo& io, const RowSet& rows, const Tensor& dbias) {
  const BackwardContext& context = io.context;
  const Tensor& dy = io.dy;
  const Tensor& x_full = io.inputs_full[0];
  const Tensor dweight = io.gradient(0);
  const auto parameter = static_cast<std::size_t>(io.parameter_numbers[0]);
  const bool sampled_site = io.weight_site >= 0 && context.mode != SamplingMode::kExact;
  const auto site = static_cast<std::size_t>(io.weight_site);
  const bool draw = sampled_site && context.mode == SamplingMode::kItemsAndRows &&
                    context.weight_ratio[site] < 1.0 && dweight;
  const bool variance_wanted = sampled_site && context.record && context.record->weight_variance;
  if (sampled_site && context.record && !context.record->kept_rows.empty())
    context.record->kept_rows[site] = rows.rows;

  if (dbias) {
    const ColumnSum bias{.sum = dbias, .x = dy, .accumulate = io.adds_gradients};
    io.weight_site < 0 ? exec.ops.run(bias) : waiting_biases_.add(bias);
  }
  if (!draw && dweight)
    exec.ops.run(LinearBackwardWeight{.dweight = dweight,
                                      .dy = dy,
                                      .x_full = x_full,
                                      .row = rows.row,
                                      .accumulate = io.adds_gradients});
  // A look behind the product finds its input in the cache, so its time is the probe's alone.
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
  if (draw || variance_wanted)
    waiting_.push_back({.dweight = draw ? dweight : Tensor{},
                        .accumulate = io.adds_gradients,
                        .dy = dy,
                        .x_full = x_full,
                        .dy_norm = io.dy_norm,
                        .x_norm_full = io.input_norm_full,
                        .row = rows.row,
                        .site = site});
}

void WeightSampler::flush(Exec& exec, const BackwardContext& context) {
  if (waiting_biases_.size() > 0) exec.ops.run(waiting_biases_);
  waiting_biases_ = {};
  if (waiting_.empty()) return;
  ArenaFrame frame(exec.scratch);
  const DType statistics = statistics_dtype(exec.dtype);
  const bool systematic = context.selection == Selection::kSystematic;
  const bool variance_wanted = context.record && context.record->weight_variance;
  Group<RowScore> scores;
  for (const Waiting& of : waiting_)
    scores.add({.score = exec.scratch.take(statistics, {of.dy.rows()}),
                .dy = of.dy,
                .x_full = of.x_full,
                .row = of.row,
                .dy_norm = of.dy_norm,
                .x_norm_full = of.x_norm_full});
  exec.ops.run(scores);

  Group<Draw> draws;
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    const Waiting& of = waiting_[i];
    const std::int64_t rows = of.dy.rows();
    const Tensor prob = exec.scratch.take(statistics, {rows});
    double budget = context.weight_ratio[of.site] * static_cast<double>(rows);
    if (systematic) budget = whole_budget(budget);
    if (variance_wanted)
      exec.ops.run(KeepProbability{
          .prob = prob,
          .variance = {context.record->weight_variance.ptr<double>() + of.site, DType::kF64, {1}},
          .score = scores[i].score,
          .budget = budget});
    if (!of.dweight) continue;
    const std::int64_t most = systematic ? std::min(rows, static_cast<std::int64_t>(budget)) : rows;
    draws.add(
        {.kept = exec.scratch.take(DType::kI32, {most}),
         .scale = exec.scratch.take(statistics, {most}),
         .count = systematic ? Tensor{} : exec.scratch.take(DType::kI32, {1}),
         .prob = prob,
         .score = scores[i].score,
         .id = of.row,
         .budget = budget,
         .selection = context.selection,
         .key = exec.key(Stream::kWeight, static_cast<std::uint32_t>(of.site), context.repeat),
         .step = exec.step});
  }
  if (draws.size() > 0) multiply(exec, context, draws);
  waiting_.clear();
}

void WeightSampler::multiply(Exec& exec, const BackwardContext& context,
                             const Group<Draw>& draws) const {
  exec.ops.run(draws);
  Group<LinearBackwardWeight> products;
  for (const Waiting& of : waiting_) {
    if (!of.dweight) continue;
    const Draw& draw = draws[products.size()];
    products.add({.dweight = of.dweight,
                  .dy = of.dy,
                  .x_full = of.x_full,
                  .row = of.row,
                  .kept = draw.kept,
                  .scale = draw.scale,
                  .count = draw.count,
                  .expected = std::min(draw.budget, static_cast<double>(of.dy.rows())),
                  .accumulate = of.accumulate});
    if (context.record && !context.record->kept_rows.empty())
      context.record->kept_rows[of.site] = draw.count ? -1 : draw.kept.elements();
  }
  exec.ops.run(products);
}

std::size_t WeightSampler::scratch_bytes(std::int64_t max_rows) {
  const auto rows = static_cast<std::size_t>(max_rows);
  return 3 * Arena::round_up(rows * sizeof(double)) + Arena::round_up(rows * sizeof(std::int32_t)) +
         Arena::kAlignment;
}

}  // namespace vcas
