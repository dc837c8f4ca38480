// Norms, scores, probabilities and draws, and what they keep (docs/sampling.md).
#pragma once

#include <algorithm>
#include <cmath>

#include "core/host_device.h"
#include "kernels/ops/op.h"
#include "kernels/ops/patches.h"

namespace vcas {

// How kept rows are drawn from their probabilities (docs/sampling.md).
// kBernoulli: independently. kSystematic: by one uniform number for all rows.
enum class Selection { kBernoulli, kSystematic };

// How many rows systematic selection keeps for a budget: the budget rounded up.
// A budget one ulp above a whole number, as n / N times N may be, is not rounded up.
VCAS_HOST_DEVICE inline double whole_budget(double budget) {
  return std::ceil(budget * (1 - 1e-12));
}

// The budget of one candidate times `candidates`. `whole`: that is rounded up.
VCAS_HOST_DEVICE inline double budget_of(double each, std::int64_t candidates, bool whole) {
  const double budget = each * static_cast<double>(candidates);
  return whole ? whole_budget(budget) : budget;
}

// score[i] = || dy[i] ||_2 * || x_full[row[i]] ||_2. With patches row[i] is a patch of x_full.
// A factor with given norms is not read. These are the norms of P parts of each row.
// With `filled` so many rows have a score, the first ones.
struct RowScore {
  static constexpr const char* kName = "row_score";
  static constexpr Family kFamily = Family::kSampling;
  Tensor score;        // S [K]
  Tensor dy;           // T [K, D]
  Tensor x_full;       // T [R, C]
  Tensor row;          // i32 [K], optional
  Tensor dy_norm;      // S [K, P], optional
  Tensor x_norm_full;  // S [R, P], optional
  Tensor filled;       // i64 [1], optional
  Patches patches;
  template <class V>
  void visit(V&& v) const {
    v.out("score", score), v.in("row", row), v.in("filled", filled);
    dy_norm ? v.in("dy_norm", dy_norm) : v.in("dy", dy);
    x_norm_full ? v.in("x_norm_full", x_norm_full) : v.in("x_full", x_full);
  }

  void check() const {
    VCAS_CHECK((!dy_norm || dy_norm.rows() == dy.rows()) &&
                   (!x_norm_full || x_norm_full.rows() == x_full.rows()),
               "norms " + dy_norm.shape.text() + " and " + x_norm_full.shape.text() +
                   " of rows of " + dy.shape.text() + " and " + x_full.shape.text());
  }
  Work work() const { return {.rows_read = rows_named(row), .launches = 0, .group_launches = 1}; }
  Rounding rounding(std::string_view, const auto& values) const {
    return {.length = dy.width() + patches.taps() * x_full.width(),
            .elements = filled ? values.last(filled) : kAll};
  }
  static RowScore sample(auto& s) {
    RowScore args{.score = s.wide({s.kept_rows()}),
                  .dy = s.random({s.kept_rows(), s.size.hidden}),
                  .x_full = s.random({s.rows(), s.size.width}),
                  .row = s.row()};
    if (s.size.convolution) args.patches = s.patches();
    if (!s.every_other_time()) return args;
    args.dy_norm = s.positive(s.kept_rows()).reshaped({s.kept_rows(), 1});
    args.x_norm_full = s.positive(s.rows()).reshaped({s.rows(), 1});
    return args;
  }
};

// norm[n] = Frobenius norm of the rows offsets[n] .. offsets[n + 1] of x,
// divided by sqrt(tokens[n + 1] - tokens[n]) where these are given: a score per cost.
struct ItemNorm {
  static constexpr const char* kName = "item_norm";
  static constexpr Family kFamily = Family::kSampling;
  Tensor norm;     // S [N]
  Tensor x;        // T [R, C]
  Tensor offsets;  // i64 [N + 1]
  Tensor tokens;   // i64 [N + 1], optional
  template <class V>
  void visit(V&& v) const {
    v.out("norm", norm), v.in("x", x), v.in("offsets", offsets), v.in("tokens", tokens);
  }

  void check() const {
    check_hold(kName, norm.elements() + 1, {{"offsets", offsets}, {"tokens", tokens}});
  }
  Work work() const { return {}; }
  Rounding rounding(std::string_view, const auto& values) const {
    return {values.longest_item(offsets) * x.width()};
  }
  static ItemNorm sample(auto& s) {
    return {.norm = s.wide({s.kept_items()}),
            .x = s.random({s.kept_rows(), s.size.width}),
            .offsets = s.offsets(s.kept_items()),
            .tokens = s.every_other_time() ? s.offsets(s.kept_items()) : Tensor{}};
  }
};

// Capped proportional probabilities: prob[i] = min(1, c * score[i]). c makes them sum to `budget`.
// A score of zero gets 0. If the budget covers all nonzero scores, each of them gets 1.
// Scaling all scores by 1e-30 or 1e+30 changes nothing.
// A score that is not finite gets 1: it must reach the gradient, whose check names the tensor.
// The others share the rest of the budget.
// With `filled` only its first scores count, and there is a `budget` for each of these (budget_of).
struct KeepProbability {
  static constexpr const char* kName = "keep_probability";
  static constexpr Family kFamily = Family::kSampling;
  Tensor prob;      // S [n]
  Tensor variance;  // f64 [1], optional: sum over i of (1 - p) / p * score^2 (p > 0)
  Tensor score;     // S [n], >= 0
  double budget = 0;
  Tensor filled;       // i64 [1], optional
  bool whole = false;  // with `filled`: the budget of all is rounded up
  template <class V>
  void visit(V&& v) const {
    v.out("prob", prob), v.out("variance", variance), v.in("score", score), v.in("filled", filled);
  }

  void check() const { check_hold(kName, score.elements(), {{"prob", prob}}); }
  Work work() const { return {}; }
  // 1 - p loses all digits of a p near 1, where it multiplies score^2.
  Rounding rounding(std::string_view output, const auto& values) const {
    if (output == "prob")
      return {.length = score.elements(), .elements = filled ? values.last(filled) : kAll};
    const double largest = values.top(score);
    return {score.elements(), largest * largest};
  }
  static KeepProbability sample(auto& s) {
    return {.prob = s.wide({s.rows()}),
            .variance = s.empty({1}, DType::kF64),
            .score = s.positive(s.rows()),
            .budget = static_cast<double>(s.rows()) / 3};
  }
};

// Draws the kept indices, ascending: P(i kept) = prob[i] (KeepProbability), scale 1 / prob[i].
// kBernoulli: i is kept iff u(id[i]) < prob[i], independently. An empty draw is legal.
// kSystematic: i is drawn iff an integer lies in (S[i-1] + u, S[i] + u], S the running sum of prob.
// It keeps exactly K = kept.elements() <= n indices, for a sum of prob up to K.
// The host therefore knows K. If fewer are drawn, the first others fill up with scale 0.
// If more are drawn, the first K count. A group has one selection.
// With `filled` only its first scores count, as in KeepProbability, and the budget of a systematic
// draw is whole. That draw then keeps as many as this budget, or all, and K is the most it may be.
struct Draw {
  static constexpr const char* kName = "draw";
  static constexpr Family kFamily = Family::kSampling;
  Tensor kept;   // i32 [n], the first count[0] are set; or [K]
  Tensor scale;  // S, likewise
  Tensor count;  // i32 [1], of kBernoulli, or with `filled`
  Tensor prob;   // S [n]
  Tensor score;  // S [n], >= 0
  Tensor id;     // i32 [n], optional: row of the full batch, addresses the random numbers
  double budget = 0;
  Tensor filled;  // i64 [1], optional
  Selection selection = Selection::kBernoulli;
  RandomKey key;
  Tensor step;  // i64 [1], optional: in place of the key's
  template <class V>
  void visit(V&& v) const {
    v.out("count", count), v.out("kept", kept), v.out("scale", scale), v.out("prob", prob);
    v.in("score", score), v.in("id", id), v.in("filled", filled), v.in("step", step);
  }

  void check() const {
    const std::int64_t n = prob.elements();
    VCAS_CHECK(count || kept.elements() <= n,
               std::to_string(kept.elements()) + " of " + std::to_string(n) + " indices");
    VCAS_CHECK(score.elements() == n, "a score for each probability");
  }
  Work work() const { return {.launches = 0, .group_launches = 1}; }
  Rounding rounding(std::string_view output, const auto& values) const {
    const bool candidates = output == "prob", all = !count || output == "count";
    return {.length = score.elements(),
            .elements = candidates && filled ? values.last(filled)
                        : candidates || all  ? kAll
                                             : values.last(count)};
  }
  static Draw sample(auto& s) {
    Draw args = sample(s, s.rows());
    args.score = s.positive(s.rows());
    return args;
  }
  // without scores
  static Draw sample(auto& s, std::int64_t candidates) {
    const bool systematic = s.size.selection == Selection::kSystematic;
    const std::int64_t budget = std::max<std::int64_t>(candidates / 3, 1);
    const std::int64_t most = systematic ? budget : candidates;
    return {.kept = s.empty({most}, DType::kI32),
            .scale = s.wide({most}),
            .count = systematic ? Tensor{} : s.empty({1}, DType::kI32),
            .prob = s.wide({candidates}),
            .budget = static_cast<double>(budget),
            .selection = s.size.selection};
  }
};

// Row scores, and draws by them: one draw for each score.
struct DrawRows {
  static constexpr const char* kName = "draw_rows";
  static constexpr Family kFamily = Family::kSampling;
  Group<RowScore> scores;
  Group<Draw> draws;
  auto parts() const { return std::tie(scores, draws); }
  template <class V>
  void visit(V&& v) const {
    scores.visit(v), draws.visit(v);
  }

  // A device draws by the scores that the same blocks have written.
  void check() const {
    VCAS_CHECK(scores.size() == draws.size(), "scores and draws of unequal number");
    for (std::size_t i = 0; i < draws.size(); ++i) {
      const Tensor &made = scores[i].score, &read = draws[i].score;
      VCAS_CHECK(made.data == read.data && made.elements() == read.elements(),
                 "a draw by other scores than those before it");
    }
  }
  std::int64_t launches() const { return 1; }
  static DrawRows sample(auto& s) {
    DrawRows args;
    for (int i = 0; i < 2; ++i) {
      const RowScore score = RowScore::sample(s);
      Draw draw = Draw::sample(s, score.score.elements());
      draw.score = score.score, draw.id = score.row;
      args.scores.add(score), args.draws.add(draw);
    }
    return args;
  }
};

// Draws items of a batch that were not kept, uniformly without replacement, in random order.
// They are those of the smallest numbers, one for each item.
struct DrawEcho {
  static constexpr const char* kName = "draw_echo";
  static constexpr Family kFamily = Family::kSampling;
  Tensor item;             // i32 [E]; E + K <= items
  Tensor kept;             // i32 [K]: indices of `id`, or items
  Tensor id;               // i32, optional: items of the full batch
  std::int64_t items = 0;  // of the full batch
  RandomKey key;
  Tensor step;  // i64 [1], optional: in place of the key's
  template <class V>
  void visit(V&& v) const {
    v.out("item", item), v.in("kept", kept), v.in("id", id), v.in("step", step);
  }

  void check() const {
    VCAS_CHECK(kept.elements() + item.elements() <= items,
               std::to_string(item.elements()) + " echoes of " +
                   std::to_string(items - kept.elements()) + " items");
  }
  Work work() const { return {}; }
  Rounding rounding(std::string_view, const auto&) const { return {}; }
  static DrawEcho sample(auto& s) {
    return {.item = s.empty({(s.size.items - s.kept_items() + 1) / 2}, DType::kI32),
            .kept = s.holding(s.items),
            .items = s.size.items};
  }
};

// Composes a row set with a draw of its items (core/row_set.h).
// It has the first K = kept.elements() kept items and their offsets[K] rows.
// Further entries of `row`, source_row and row_scale are 0: padding reads a row that there is.
// The items of `echo` follow, with their rows of the full batch and the scale 1.
// Items then have equal numbers of rows. source_row and row_scale have those of kept items alone.
struct NarrowRows {
  static constexpr const char* kName = "narrow_rows";
  static constexpr Family kFamily = Family::kSampling;
  Tensor item;         // i32 [K + E]
  Tensor scale;        // S [K + E]
  Tensor offsets;      // i64 [K + E + 1]
  Tensor row;          // i32 [capacity]: full-batch row of each kept row
  Tensor source_row;   // i32 [capacity]: row of the old compact tensor
  Tensor row_scale;    // S [capacity]: kept_scale of the item
  Tensor kept;         // i32 [K]
  Tensor kept_scale;   // S [K]
  Tensor echo;         // i32 [E], optional: items of the full batch
  Tensor old_item;     // i32, optional
  Tensor old_scale;    // S, optional
  Tensor old_offsets;  // i64
  Tensor old_row;      // i32, optional
  template <class V>
  void visit(V&& v) const {
    v.out("offsets", offsets), v.out("item", item), v.out("scale", scale), v.out("row", row);
    v.out("source_row", source_row), v.out("row_scale", row_scale);
    v.in("kept", kept), v.in("kept_scale", kept_scale);
    v.in("echo", echo), v.in("old_item", old_item), v.in("old_scale", old_scale),
        v.in("old_offsets", old_offsets);
    v.in("old_row", old_row);
  }

  void check() const {
    const std::int64_t items = kept.elements() + echo.elements();
    check_hold(kName, items, {{"item", item}, {"scale", scale}});
    check_hold(kName, items + 1, {{"offsets", offsets}});
    check_hold(kName, kept.elements(), {{"kept_scale", kept_scale}});
    check_hold(kName, row.elements(), {{"source_row", source_row}, {"row_scale", row_scale}});
  }
  Work work() const { return {.launches = 0, .group_launches = 2}; }
  Rounding rounding(std::string_view output, const auto& values) const {
    if (output != "source_row" && output != "row_scale") return {};
    return {.elements =
                echo ? values.last(offsets) / item.elements() * kept.elements() : row.elements()};
  }
  static NarrowRows sample(auto& s) {
    return {.item = s.empty({s.kept_items()}, DType::kI32),
            .scale = s.wide({s.kept_items()}),
            .offsets = s.empty({s.kept_items() + 1}, DType::kI64),
            .row = s.empty({s.rows()}, DType::kI32),
            .source_row = s.empty({s.rows()}, DType::kI32),
            .row_scale = s.wide({s.rows()}),
            .kept = s.holding(s.items),
            .kept_scale = s.positive(s.kept_items()),
            .old_offsets = s.offsets(s.size.items)};
  }
};

// Scores of items, a systematic draw by them, and the row sets of the items that it keeps.
struct DrawItems {
  static constexpr const char* kName = "draw_items";
  static constexpr Family kFamily = Family::kSampling;
  ItemNorm norm;
  Draw draw;
  Group<NarrowRows> rows;
  auto parts() const { return std::tie(norm, draw, rows); }
  template <class V>
  void visit(V&& v) const {
    norm.visit(v), draw.visit(v), rows.visit(v);
  }

  void check() const {
    VCAS_CHECK(draw.selection == Selection::kSystematic && !draw.filled && norm.norm.elements() > 0,
               "the host must know how many items a draw keeps, and that there are some");
    VCAS_CHECK(draw.score.data == norm.norm.data && draw.score.elements() == norm.norm.elements(),
               "a draw by other scores than those before it");
    for (const NarrowRows& of : rows)
      VCAS_CHECK(of.kept.data == draw.kept.data && of.kept_scale.data == draw.scale.data &&
                     of.kept.elements() == draw.kept.elements() && !of.echo,
                 "rows of other items than those drawn");
  }
  // Whether the block that draws would take longer for the rows than another launch.
  bool many_rows() const {
    return std::ranges::any_of(rows, [](const NarrowRows& of) { return of.row.elements() > 8192; });
  }
  std::int64_t launches() const { return many_rows() ? 2 : 1; }
  static DrawItems sample(auto& s) {
    DrawItems args{.norm = ItemNorm::sample(s)};
    const std::int64_t items = args.norm.norm.elements(), kept = (items + 2) / 3;
    args.draw = {.kept = s.empty({kept}, DType::kI32),
                 .scale = s.wide({kept}),
                 .prob = s.wide({items}),
                 .score = args.norm.norm,
                 .budget = static_cast<double>(kept),
                 .selection = Selection::kSystematic};
    for (int i = 0; i < 2; ++i)
      args.rows.add({.item = s.empty({kept}, DType::kI32),
                     .scale = s.wide({kept}),
                     .offsets = s.empty({kept + 1}, DType::kI64),
                     .row = s.empty({args.norm.x.rows()}, DType::kI32),
                     .source_row = s.empty({args.norm.x.rows()}, DType::kI32),
                     .row_scale = s.wide({args.norm.x.rows()}),
                     .kept = args.draw.kept,
                     .kept_scale = args.draw.scale,
                     .old_offsets = args.norm.offsets});
    return args;
  }
};

// The gate's compaction: y[r] = row_scale[r] * x[source_row[r]].
struct GatherScaledRows {
  static constexpr const char* kName = "gather_scaled_rows";
  static constexpr Family kFamily = Family::kSampling;
  Tensor y;           // T [K, C]
  Tensor y_norm;      // S [K], optional
  Tensor x;           // T [R, C]
  Tensor source_row;  // i32 [K]
  Tensor row_scale;   // S [K]
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.out("y_norm", y_norm), v.in("x", x), v.in("source_row", source_row);
    v.in("row_scale", row_scale);
  }

  void check() const {
    check_hold(kName, y.rows(),
               {{"y_norm", y_norm}, {"source_row", source_row}, {"row_scale", row_scale}});
  }
  Work work() const { return {.rows_read = source_row.elements()}; }
  Rounding rounding(std::string_view, const auto&) const { return {y.width()}; }
  static GatherScaledRows sample(auto& s) {
    return {.y = s.empty({s.kept_rows(), s.size.width}),
            .y_norm = s.wide({s.kept_rows()}),
            .x = s.random({s.rows(), s.size.width}),
            .source_row = s.holding(s.item_rows),
            .row_scale = s.positive(s.kept_rows())};
  }
};

}  // namespace vcas

// clang-format off
#define VCAS_SAMPLING_OPS(X) \
  X(Group<RowScore>) X(ItemNorm) X(KeepProbability) X(Group<Draw>) X(DrawRows) X(DrawEcho)  \
  X(Group<NarrowRows>) X(DrawItems) X(GatherScaledRows)
// clang-format on
