// Rows from images, tokens and other rows, and rows of an item as one.
#pragma once

#include "kernels/ops/op.h"

namespace vcas {

enum class Pooling { kFirst, kMean };

// y[n * P + j, (channel * patch + dy) * patch + dx]: the P = (height / patch) * (width / patch)
// patches of image item[n], row by row.
struct PatchExtract {
  static constexpr const char* kName = "patch_extract";
  static constexpr Family kFamily = Family::kRest;
  Tensor y;      // T [K * P, channels * patch * patch]
  Tensor image;  // f32 [N, channels, height, width]
  Tensor item;   // i32 [K], optional
  std::int64_t patch = 1;
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.in("image", image), v.in("item", item);
  }

  void check() const {
    const std::int64_t items = item ? item.elements() : image.shape[0];
    const std::int64_t patches = (image.shape[2] / patch) * (image.shape[3] / patch);
    VCAS_CHECK(y.rows() == items * patches && y.width() == image.shape[1] * patch * patch,
               "patches " + y.shape.text() + " of images " + image.shape.text());
  }
  Work work() const { return {}; }
  Rounding rounding(std::string_view, const auto&) const { return {}; }
  static PatchExtract sample(auto& s) {
    const std::int64_t side = s.patches_across() * s.size.patch;
    return {.y = s.empty({s.kept_rows(), 3 * s.size.patch * s.size.patch}),
            .image = s.wide_random({s.size.items, 3, side, side}),
            .item = s.item(),
            .patch = s.size.patch};
  }
};

// y[n, t] = position[t] + (cls row first, then the item's patch rows); without cls, T = P.
struct PatchTokensForward {
  static constexpr const char* kName = "patch_tokens_forward";
  static constexpr Family kFamily = Family::kRest;
  Tensor y;         // T [N, T, C]
  Tensor patches;   // T [N, P, C]
  Tensor cls;       // T [C], optional: T = P + 1 with it, T = P without
  Tensor position;  // T [T, C]
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.in("patches", patches), v.in("cls", cls), v.in("position", position);
  }

  void check() const {
    VCAS_CHECK(y.shape[1] == patches.shape[1] + (cls ? 1 : 0),
               "tokens " + y.shape.text() + " of patches " + patches.shape.text());
  }
  Work work() const { return {}; }
  Rounding rounding(std::string_view, const auto&) const { return {}; }
  static PatchTokensForward sample(auto& s) {
    return {.y = s.empty({s.size.items, s.size.tokens, s.size.width}),
            .patches = s.random({s.size.items, s.size.tokens - 1, s.size.width}),
            .cls = s.random({s.size.width}),
            .position = s.random({s.size.tokens, s.size.width})};
  }
};

struct PatchTokensBackward {
  static constexpr const char* kName = "patch_tokens_backward";
  static constexpr Family kFamily = Family::kRest;
  Tensor dpatches;   // T [K, P, C]
  Tensor dcls;       // S [C], +=, optional
  Tensor dposition;  // S [T, C], +=, optional: no parameter gradient is wanted
  Tensor dy;         // T [K, T, C]
  template <class V>
  void visit(V&& v) const {
    v.out("dpatches", dpatches), v.out("dcls", dcls, true), v.out("dposition", dposition, true);
    v.in("dy", dy);
  }

  void check() const {
    const std::int64_t skipped = dy.shape[1] - dpatches.shape[1];
    VCAS_CHECK(skipped == 0 || skipped == 1,
               "patches " + dpatches.shape.text() + " of tokens " + dy.shape.text());
  }
  Work work() const { return {}; }
  Rounding rounding(std::string_view, const auto& values) const {
    return {dy.rows(), values.top(dy)};
  }
  static PatchTokensBackward sample(auto& s) {
    return {.dpatches = s.empty({s.kept_items(), s.size.tokens - 1, s.size.width}),
            .dcls = s.wide({s.size.width}),
            .dposition = s.wide({s.size.tokens, s.size.width}),
            .dy = s.random({s.kept_items(), s.size.tokens, s.size.width})};
  }
};

// y[n] = the first row of item n, or the mean of its rows.
struct PoolForward {
  static constexpr const char* kName = "pool_forward";
  static constexpr Family kFamily = Family::kRest;
  Tensor y;        // T [N, C]
  Tensor x;        // T [R, C]
  Tensor offsets;  // i64 [N + 1]
  Pooling pooling = Pooling::kFirst;
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.in("x", x), v.in("offsets", offsets);
  }

  void check() const { check_hold(kName, y.rows() + 1, {{"offsets", offsets}}); }
  Work work() const { return {}; }
  Rounding rounding(std::string_view, const auto& values) const {
    return {values.longest_item(offsets), values.top(x)};
  }
  static PoolForward sample(auto& s) {
    return {.y = s.empty({s.size.items, s.size.width}),
            .x = s.random({s.rows(), s.size.width}),
            .offsets = s.offsets(s.size.items),
            .pooling = Pooling::kMean};
  }
};

struct PoolBackward {
  static constexpr const char* kName = "pool_backward";
  static constexpr Family kFamily = Family::kRest;
  Tensor dx;       // T [R, C]
  Tensor dy;       // T [N, C]
  Tensor offsets;  // i64 [N + 1]
  Pooling pooling = Pooling::kFirst;
  template <class V>
  void visit(V&& v) const {
    v.out("dx", dx), v.in("dy", dy), v.in("offsets", offsets);
  }

  void check() const { check_hold(kName, dy.rows() + 1, {{"offsets", offsets}}); }
  Work work() const { return {}; }
  Rounding rounding(std::string_view, const auto& values) const {
    return {.elements = values.last(offsets) * dx.width()};
  }
  static PoolBackward sample(auto& s) {
    return {.dx = s.empty({s.kept_rows(), s.size.width}),
            .dy = s.random({s.kept_items(), s.size.width}),
            .offsets = s.offsets(s.kept_items()),
            .pooling = Pooling::kMean};
  }
};

// y[r] = table[tokens[r]]
struct EmbeddingForward {
  static constexpr const char* kName = "embedding_forward";
  static constexpr Family kFamily = Family::kRest;
  Tensor y;       // T [R, C]
  Tensor table;   // T [V, C]
  Tensor tokens;  // i32 [R]
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.in("table", table), v.in("tokens", tokens);
  }

  void check() const { check_hold(kName, y.rows(), {{"tokens", tokens}}); }
  Work work() const { return {}; }
  Rounding rounding(std::string_view, const auto&) const { return {}; }
  static EmbeddingForward sample(auto& s) {
    return {.y = s.empty({s.rows(), s.size.width}),
            .table = s.random({s.size.vocabulary, s.size.width}),
            .tokens = s.below(s.rows(), s.size.vocabulary)};
  }
};

// dtable[tokens_full[row[r]]] += dy[r], in a fixed order.
struct EmbeddingBackward {
  static constexpr const char* kName = "embedding_backward";
  static constexpr Family kFamily = Family::kRest;
  Tensor dtable;       // S [V, C], +=
  Tensor dy;           // T [K, C]
  Tensor tokens_full;  // i32 [R]
  Tensor row;          // i32 [K], optional
  template <class V>
  void visit(V&& v) const {
    v.out("dtable", dtable, true), v.in("dy", dy), v.in("tokens_full", tokens_full),
        v.in("row", row);
  }

  void check() const {
    check_hold(kName, dy.rows(), {{row ? "row" : "tokens_full", row ? row : tokens_full}});
  }
  // So few that a device looks at all rows for each of them.
  bool has_few_entries() const {
    return dtable.rows() <= 512 && dtable.rows() * dy.elements() <= std::int64_t{1} << 31;
  }
  // Many entries take keys, a sort, sums of segments, the segments of several sums. A sort counts
  // as one.
  Work work() const {
    const std::int64_t launches = has_few_entries() ? 1 : 4;
    return {.rows_read = rows_named(row), .launches = dy.rows() > 0 ? launches : 0};
  }
  Rounding rounding(std::string_view, const auto& values) const {
    return {dy.rows(), values.top(dy) + values.top(dtable)};
  }
  static EmbeddingBackward sample(auto& s) {
    return {.dtable = s.wide({s.size.vocabulary, s.size.width}),
            .dy = s.random({s.kept_rows(), s.size.width}),
            .tokens_full = s.below(s.rows(), s.size.vocabulary),
            .row = s.row()};
  }
};

// The gradient of y[p] = x[index[p]], an EmbeddingForward with x as its table.
// First dx = 0. The rows p of item n follow in ascending order.
// r = index_full[row[p]] is a row of that item in the full batch. Then
//
//   dx[offsets[n] + r - offsets_full[item[n]]] += dy[p],
//
// rounded to T each time.
struct ScatterRows {
  static constexpr const char* kName = "scatter_rows";
  static constexpr Family kFamily = Family::kRest;
  Tensor dx;            // T [R', C]
  Tensor dy;            // T [K, C]
  Tensor index_full;    // i32 [P]
  Tensor row;           // i32 [K], optional
  Tensor item;          // i32 [items], optional
  Tensor dy_offsets;    // i64 [items + 1]
  Tensor offsets;       // i64 [items + 1], of dx
  Tensor offsets_full;  // i64 [N + 1]
  template <class V>
  void visit(V&& v) const {
    v.out("dx", dx), v.in("dy", dy), v.in("index_full", index_full), v.in("row", row);
    v.in("item", item), v.in("dy_offsets", dy_offsets), v.in("offsets", offsets);
    v.in("offsets_full", offsets_full);
  }

  void check() const {
    check_hold(kName, dy.rows(), {{"row", row}});
    check_hold(kName, offsets.elements(), {{"dy_offsets", dy_offsets}});
    check_hold(kName, offsets.elements() - 1, {{"item", item}});
  }
  Work work() const { return {.rows_read = rows_named(row)}; }
  Rounding rounding(std::string_view, const auto& values) const {
    return {dy.rows(), values.top(dy), values.last(offsets) * dx.width()};
  }
  static ScatterRows sample(auto& s) {
    const Tensor item = s.item();  // the first row of each
    return {.dx = s.empty({s.kept_rows(), s.size.width}),
            .dy = s.random({s.kept_items(), s.size.width}),
            .index_full = s.first(s.size.items, s.size.tokens),
            .row = item,
            .item = item,
            .dy_offsets = s.offsets(s.kept_items(), 1),
            .offsets = s.offsets(s.kept_items()),
            .offsets_full = s.offsets(s.size.items)};
  }
};

}  // namespace vcas

// clang-format off
#define VCAS_TOKENS_OPS(X) \
  X(PatchExtract) X(PatchTokensForward) X(PatchTokensBackward) X(PoolForward) \
  X(PoolBackward) X(EmbeddingForward) X(EmbeddingBackward) X(ScatterRows)
// clang-format on
