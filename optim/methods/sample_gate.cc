#include "optim/methods/sample_gate.h"

#include <algorithm>

#include "core/read_numbers.h"

namespace vcas {

ItemNorm item_scores(const Tensor& norm, const Tensor& dy, const RowSets& rows, Layout layout,
                     bool per_token) {
  const RowSet& own = rows.of(layout);
  const RowSet* tokens = per_token ? rows.find(Layout::tokens()) : nullptr;
  return {.norm = norm.range(0, own.items),
          .x = dy,
          .offsets = own.offsets,
          .tokens = tokens ? tokens->offsets : Tensor{}};
}

SampleGate::SampleGate(Ops& ops, const GraphPlan& plan) {
  const std::int64_t max_items = plan.limits.max_items;
  const DType statistics = statistics_dtype(plan.dtype);
  std::vector<Tensor*> tensors;
  const auto want = [&](Tensor& tensor, DType type, std::int64_t elements) {
    tensor = {nullptr, type, {elements}};
    tensors.push_back(&tensor);
  };
  want(norm_, statistics, max_items);
  want(prob_, statistics, max_items);
  want(keep_scale_, statistics, max_items);
  want(drawn_, DType::kI32, 1 + max_items);
  want(echo_, DType::kI32, max_items);
  host_drawn_.resize(1 + max_items);
  for (const Layout layout : plan.layouts) layouts_.push_back({.layout = layout});
  for (KeptRows& rows : layouts_) {
    const std::int64_t max_rows = plan.max_rows(rows.layout);
    want(rows.item, DType::kI32, max_items);
    want(rows.scale, statistics, max_items);
    want(rows.offsets, DType::kI64, max_items + 1);
    want(rows.row, DType::kI32, max_rows);
    want(rows.source_row, DType::kI32, max_rows);
    want(rows.row_scale, statistics, max_rows);
    rows.host_offsets.resize(static_cast<std::size_t>(max_items) + 1);
  }
  buffer_ = Buffer(ops, tensors);
}

std::span<const RowSets> SampleGate::draw(Exec& exec, const DrawSettings& settings,
                                          const GateSite& site, const Tensor& dy,
                                          const RowSets& rows) {
  const RowSet& own = rows.of(site.layout);
  const ItemNorm norm = item_scores(norm_, dy, rows, site.layout, settings.per_token);
  const Tensor prob = prob_.range(0, own.items);
  const bool systematic = settings.selection == Selection::kSystematic;
  const bool chained = systematic && rows.sizes_known() && !settings.threshold && site.mixing == 0;
  if (!chained) exec.ops.run(norm);
  double budget = settings.ratio * static_cast<double>(site.batch_items);
  if (settings.threshold) {
    budget = by_threshold(exec.ops, settings, norm.norm, budget);
    if (systematic) budget = ItemThreshold::whole(budget);
  } else if (systematic) {
    budget = whole_budget(budget);
  }
  std::int64_t kept =
      systematic ? std::min(own.items, static_cast<std::int64_t>(budget)) : own.items;
  auto* drawn = drawn_.ptr<std::int32_t>();
  const Draw draw{
      .kept = kept_items(kept),
      .scale = keep_scale_.range(0, kept),
      .count = systematic ? Tensor{} : Tensor{drawn, DType::kI32, {1}},
      .prob = prob,
      .score = norm.norm,
      .id = own.item,
      .budget = budget,
      .selection = settings.selection,
      .key = exec.key(Stream::kGate, static_cast<std::uint32_t>(site.number), settings.repeat),
      .step = exec.step};
  if (chained) {
    exec.ops.run(DrawItems{norm, draw, narrowing(rows, kept)});
    return prefixes_;
  }
  exec.ops.run(draw);
  if (!systematic || !rows.sizes_known())
    exec.ops.copy_to_host(host_drawn_.data(), drawn, (1 + kept) * sizeof(std::int32_t));
  if (!systematic) kept = host_drawn_[0];
  draw_echoes(exec, settings, site, own, kept);
  exec.ops.run(narrowing(rows, kept));
  return prefixes_;
}

double SampleGate::by_threshold(Ops& ops, const DrawSettings& settings, const Tensor& score,
                                double target) {
  host_bytes_.resize(score.bytes());
  ops.copy_to_host(host_bytes_.data(), score.data, score.bytes());
  host_score_.resize(score.elements());
  read_numbers(host_bytes_.data(), score.dtype, std::span(host_score_));
  ItemThreshold now = *settings.threshold;
  now.follow(host_score_, target);
  if (settings.moves_threshold) *settings.threshold = now;
  return now.kept(host_score_, target);
}

// As many as there are items that were not kept, at most.
void SampleGate::draw_echoes(Exec& exec, const DrawSettings& settings, const GateSite& site,
                             const RowSet& own, std::int64_t kept) {
  echoes_.assign(1, 0);
  for (int mixed = 0; mixed < site.mixing; ++mixed)
    echoes_.push_back(std::min(echoes_.back() + settings.echoes, site.batch_items - kept));
  if (echoes_.back() == 0) return;
  exec.ops.run(DrawEcho{
      .item = {echo_.data, DType::kI32, {echoes_.back()}},
      .kept = kept_items(kept),
      .id = own.item,
      .items = site.batch_items,
      .key = exec.key(Stream::kEcho, static_cast<std::uint32_t>(site.number), settings.repeat),
      .step = exec.step});
}

std::span<const RowSets> SampleGate::keep(Ops& ops, const RowSets& rows, const ItemChoice& choice) {
  VCAS_CHECK(keep_scale_.dtype == DType::kF32 && choice.weights.size() == choice.kept.size(),
             "a choice needs one f32 weight an item");
  const auto kept = std::ssize(choice.kept);
  host_drawn_[0] = static_cast<std::int32_t>(kept);
  std::ranges::transform(choice.kept, host_drawn_.begin() + 1,
                         [](std::int64_t item) { return static_cast<std::int32_t>(item); });
  ops.copy_to_device(drawn_.data, host_drawn_.data(), (1 + kept) * sizeof(std::int32_t));
  if (kept > 0) ops.copy_to_device(keep_scale_.data, choice.weights.data(), kept * sizeof(float));
  ops.run(narrowing(rows, kept));
  return prefixes_;
}

Group<NarrowRows> SampleGate::narrowing(const RowSets& rows, std::int64_t kept) {
  const Tensor echo = echoes_.back() > 0 ? echo_.range(0, echoes_.back()) : Tensor{};
  prefixes_.resize(echoes_.size());
  for (RowSets& prefix : prefixes_) prefix.entries().clear();
  Group<NarrowRows> narrowed;
  for (KeptRows& to : layouts_) {
    const RowSet& old = rows.of(to.layout);
    const auto rows_of = [&](std::int64_t items) {
      return RowSet{.items = items,
                    .rows = items * old.length,
                    .length = old.length,
                    .squares = items * old.length * old.length,
                    .item = to.item.range(0, items),
                    .scale = to.scale.range(0, items),
                    .offsets = to.offsets.range(0, items + 1),
                    .row = to.row.range(0, items * old.length)};
    };
    RowSet next = rows_of(kept);
    if (old.bound) {
      next.rows = old.bound->of(kept);
      next.squares = old.squares * kept / old.items;
      next.bound = old.bound;
    } else if (old.length == 0) {
      for (std::int64_t i = 0; i < kept; ++i) {
        const std::int64_t* from = old.host_offsets + host_drawn_[1 + i];
        const std::int64_t length = from[1] - from[0];
        to.host_offsets[i] = next.rows;
        next.rows += length;
        next.squares += length * length;
      }
      to.host_offsets[kept] = next.rows;
      next.host_offsets = to.host_offsets.data();
    }
    next.row = to.row.range(0, next.rows);
    prefixes_[0].entries().push_back({to.layout, next});
    for (std::size_t i = 1; i < echoes_.size(); ++i)
      prefixes_[i].entries().push_back({to.layout, rows_of(kept + echoes_[i])});
    const RowSet& longest = prefixes_.back().entries().back().rows;
    narrowed.add({.item = longest.item,
                  .scale = longest.scale,
                  .offsets = longest.offsets,
                  .row = longest.row,
                  .source_row = to.source_row.range(0, longest.row.elements()),
                  .row_scale = to.row_scale.range(0, longest.row.elements()),
                  .kept = kept_items(kept),
                  .kept_scale = keep_scale_.range(0, kept),
                  .echo = echo,
                  .old_item = old.item,
                  .old_scale = old.scale,
                  .old_offsets = old.offsets,
                  .old_row = old.row});
  }
  return narrowed;
}

Gradient SampleGate::compact(Exec& exec, const GateSite& site, const Tensor& dy) const {
  const std::int64_t rows = prefixes_.front().of(site.layout).rows;
  const auto own = std::ranges::find(layouts_, site.layout, &KeptRows::layout);
  const Tensor row = own->source_row.range(0, rows), scale = own->row_scale.range(0, rows);
  if (site.gathers) return {.dy = dy, .norm = {}, .row = row, .scale = scale};
  const Gradient kept{.dy = site.kept.dy.first_rows(rows),
                      .norm = site.kept.norm ? site.kept.norm.first_rows(rows) : Tensor{}};
  exec.ops.run(GatherScaledRows{
      .y = kept.dy, .y_norm = kept.norm, .x = dy, .source_row = row, .row_scale = scale});
  return kept;
}

}  // namespace vcas
