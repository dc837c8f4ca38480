#include "optim/methods/sample_gate.h"

#include <algorithm>
#include <cmath>

namespace vcas {

double whole_budget(double budget) { return std::ceil(budget * (1 - 1e-12)); }

ItemNorm item_scores(const Tensor& norm, const Tensor& dy, const RowSets& rows,
                     std::int64_t rows_per_item, bool per_token) {
  const RowSet& own = rows.of(rows_per_item);
  const RowSet* tokens = per_token ? rows.find(kTokens) : nullptr;
  return {.norm = {norm.data, norm.dtype, {own.items}},
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
  host_drawn_.resize(1 + max_items);
  layouts_.resize(plan.layouts.size());
  for (std::size_t i = 0; i < layouts_.size(); ++i) {
    const std::int64_t max_rows = plan.max_rows(plan.layouts[i]);
    layouts_[i].rows_per_item = plan.layouts[i];
    want(layouts_[i].item, DType::kI32, max_items);
    want(layouts_[i].scale, statistics, max_items);
    want(layouts_[i].offsets, DType::kI64, max_items + 1);
    want(layouts_[i].row, DType::kI32, max_rows);
    want(layouts_[i].source_row, DType::kI32, max_rows);
    layouts_[i].host_offsets.resize(static_cast<std::size_t>(max_items) + 1);
  }
  buffer_ = Buffer(ops, tensors);
}

const RowSets& SampleGate::draw(Exec& exec, const DrawSettings& settings, const GateSite& site,
                                const Tensor& dy, const RowSets& rows) {
  const RowSet& own = rows.of(site.rows_per_item);
  const ItemNorm norm = item_scores(norm_, dy, rows, site.rows_per_item, settings.per_token);
  const Tensor prob{prob_.data, prob_.dtype, {own.items}};
  const bool systematic = settings.selection == Selection::kSystematic;
  double budget = settings.ratio * static_cast<double>(site.batch_items);
  if (systematic) budget = whole_budget(budget);
  std::int64_t kept =
      systematic ? std::min(own.items, static_cast<std::int64_t>(budget)) : own.items;
  auto* drawn = drawn_.ptr<std::int32_t>();
  exec.ops.run(norm);
  exec.ops.run(
      Draw{.kept = {drawn + 1, DType::kI32, {kept}},
           .scale = {keep_scale_.data, keep_scale_.dtype, {kept}},
           .count = systematic ? Tensor{} : Tensor{drawn, DType::kI32, {1}},
           .prob = prob,
           .score = norm.norm,
           .id = own.item,
           .budget = budget,
           .selection = settings.selection,
           .key = exec.key(Stream::kGate, static_cast<std::uint32_t>(site.number), settings.repeat),
           .step = exec.step});
  const bool ragged = std::ranges::any_of(
      rows.entries(), [](const RowSets::Entry& entry) { return entry.rows.length == 0; });
  if (ragged || !systematic)
    exec.ops.copy_to_host(host_drawn_.data(), drawn,
                          static_cast<std::size_t>(1 + kept) * sizeof(std::int32_t));
  if (!systematic) kept = host_drawn_[0];
  narrow(exec.ops, rows, kept);
  return kept_rows_;
}

void SampleGate::narrow(Ops& ops, const RowSets& rows, std::int64_t kept) {
  const auto first_kept = [&](const Tensor& all) { return Tensor{all.data, all.dtype, {kept}}; };
  const Tensor kept_items{drawn_.ptr<std::int32_t>() + 1, DType::kI32, {kept}};
  kept_rows_.entries().clear();
  Group<NarrowRows> narrowed;
  for (Layout& layout : layouts_) {
    const RowSet& old = rows.of(layout.rows_per_item);
    RowSet next{.items = kept,
                .rows = kept * old.length,
                .length = old.length,
                .squares = kept * old.length * old.length,
                .item = first_kept(layout.item),
                .scale = first_kept(layout.scale),
                .offsets = {layout.offsets.data, layout.offsets.dtype, {kept + 1}}};
    if (old.length == 0) {
      for (std::int64_t i = 0; i < kept; ++i) {
        const std::int64_t* from = old.host_offsets + host_drawn_[1 + i];
        const std::int64_t length = from[1] - from[0];
        layout.host_offsets[i] = next.rows;
        next.rows += length;
        next.squares += length * length;
      }
      layout.host_offsets[kept] = next.rows;
      next.host_offsets = layout.host_offsets.data();
    }
    next.row = {layout.row.data, DType::kI32, {next.rows}};
    narrowed.add({.item = next.item,
                  .scale = next.scale,
                  .offsets = next.offsets,
                  .row = layout.row,
                  .source_row = layout.source_row,
                  .kept = kept_items,
                  .kept_scale = first_kept(keep_scale_),
                  .old_item = old.item,
                  .old_scale = old.scale,
                  .old_offsets = old.offsets,
                  .old_row = old.row});
    kept_rows_.entries().push_back({layout.rows_per_item, next});
  }
  ops.run(narrowed);
}

Gradient SampleGate::compact(Exec& exec, const GateSite& site, const Tensor& dy) const {
  const RowSet& rows = kept_rows_.of(site.rows_per_item);
  const Gradient kept{.dy = site.kept.dy.first_rows(rows.rows),
                      .norm = site.kept.norm ? site.kept.norm.first_rows(rows.rows) : Tensor{}};
  const auto own = std::ranges::find(layouts_, site.rows_per_item, &Layout::rows_per_item);
  exec.ops.run(GatherScaledRows{.y = kept.dy,
                                .y_norm = kept.norm,
                                .x = dy,
                                .source_row = {own->source_row.data, DType::kI32, {rows.rows}},
                                .offsets = rows.offsets,
                                .scale = {keep_scale_.data, keep_scale_.dtype, {rows.items}}});
  return kept;
}

}  // namespace vcas
