#include "layers/sample_gate.h"

#include <algorithm>

namespace vcas {

SampleGate::SampleGate(Ops& ops, DType dtype, int number, std::int64_t rows_per_item,
                       std::int64_t max_items, const std::vector<std::int64_t>& layouts,
                       const std::vector<std::int64_t>& max_rows)
    : number_(number), rows_per_item_(rows_per_item) {
  const DType statistics = statistics_dtype(dtype);
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
  layouts_.resize(layouts.size());
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    layouts_[i].rows_per_item = layouts[i];
    want(layouts_[i].item, DType::kI32, max_items);
    want(layouts_[i].scale, statistics, max_items);
    want(layouts_[i].offsets, DType::kI64, max_items + 1);
    want(layouts_[i].row, DType::kI32, max_rows[i]);
    want(layouts_[i].source_row, DType::kI32, max_rows[i]);
    layouts_[i].host_offsets.resize(static_cast<std::size_t>(max_items) + 1);
  }
  buffer_ = Buffer(ops, tensors);
}

const RowSets& SampleGate::draw(Exec& exec, const BackwardContext& context, const Tensor& dy,
                                const RowSets& rows, std::int64_t batch_items) {
  const RowSet& own = rows.of(rows_per_item_);
  const Shape items{own.items};
  const Tensor norm{norm_.data, norm_.dtype, items};
  const Tensor prob{prob_.data, prob_.dtype, items};
  const bool systematic = context.selection == Selection::kSystematic;
  double budget = context.act_ratio[number_] * static_cast<double>(batch_items);
  if (systematic) budget = whole_budget(budget);
  std::int64_t kept =
      systematic ? std::min(own.items, static_cast<std::int64_t>(budget)) : own.items;
  auto* drawn = drawn_.ptr<std::int32_t>();
  exec.ops.run(ItemNorm{.norm = norm, .x = dy, .offsets = own.offsets});
  exec.ops.run(
      Draw{.kept = {drawn + 1, DType::kI32, {kept}},
           .scale = {keep_scale_.data, keep_scale_.dtype, {kept}},
           .count = systematic ? Tensor{} : Tensor{drawn, DType::kI32, {1}},
           .prob = prob,
           .score = norm,
           .id = own.item,
           .budget = budget,
           .selection = context.selection,
           .key = exec.key(Stream::kGate, static_cast<std::uint32_t>(number_), context.repeat),
           .step = exec.step});
  const bool ragged = std::ranges::any_of(
      rows.entries(), [](const RowSets::Entry& entry) { return entry.rows.length == 0; });
  if (ragged || !systematic)
    exec.ops.copy_to_host(host_drawn_.data(), drawn,
                          static_cast<std::size_t>(1 + kept) * sizeof(std::int32_t));
  if (!systematic) kept = host_drawn_[0];
  if (context.record && !context.record->kept_items.empty())
    context.record->kept_items[number_] = kept;
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

void SampleGate::compact(Exec& exec, const Tensor& dy, const Tensor& dy_kept,
                         const Tensor& dy_kept_norm) const {
  const RowSet& rows = kept_rows_.of(rows_per_item_);
  for (const Layout& layout : layouts_)
    if (layout.rows_per_item == rows_per_item_)
      exec.ops.run(
          GatherScaledRows{.y = dy_kept,
                           .y_norm = dy_kept_norm,
                           .x = dy,
                           .source_row = {layout.source_row.data, DType::kI32, {rows.rows}},
                           .offsets = rows.offsets,
                           .scale = {keep_scale_.data, keep_scale_.dtype, {rows.items}}});
}

}  // namespace vcas
