// Attention.
#pragma once

#include <algorithm>

#include "kernels/ops/op.h"

namespace vcas {

// Throws unless rows of qkv, and of the query where it is apart, fit those of y.
inline void check_attention(const Tensor& y, const Tensor& query, const Tensor& qkv,
                            std::int64_t heads) {
  VCAS_CHECK(qkv.width() == (query ? 2 : 3) * y.width() && y.width() % heads == 0,
             "attention of " + std::to_string(heads) + " heads with y " + y.shape.text() +
                 ", qkv " + qkv.shape.text());
}

// Multi-head self-attention over each item's own rows: softmax(Q K^T / sqrt(C / heads)) V.
// With `causal` a row attends to itself and to rows before it.
// Dropout acts on the probabilities.
// Query i, head h and key j of an item draw half a word of a Philox draw (kernels/dropout.h):
// the low half of word j % 4 where i % 16 < 8, else the high half. Without i's bit of 8, the query
// is row r of the full batch. The draw has index (r * heads + h) * 2^20 + j / 4.
// With `query` only the first row of each item is a query. Each item then has rows.
// y and lse then have N rows, and qkv holds key and value.
struct AttentionForward {
  static constexpr const char* kName = "attention_forward";
  static constexpr Family kFamily = Family::kAttention;
  Tensor y;        // T [R, C], or [N, C]
  Tensor y_norm;   // S [R, heads], or [N, heads], optional: of each head's part
  Tensor lse;      // S [R, heads], or [N, heads]: log of the sum of exponentials of the scores
  Tensor query;    // T [N, C], optional
  Tensor qkv;      // T [R, 3C]: query, key, value side by side; or [R, 2C]: key, value
  Tensor offsets;  // i64 [N + 1]
  std::int64_t heads = 1;
  std::int64_t pairs = 0;  // of a query and a key, where the caller counts them: what it costs
  double dropout = 0;
  bool causal = false;
  RandomKey key;
  Tensor step;  // i64 [1], optional: in place of the key's
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.out("y_norm", y_norm), v.out("lse", lse), v.in("query", query);
    v.in("qkv", qkv), v.in("offsets", offsets), v.in("step", step);
  }

  void check() const { check_attention(y, query, qkv, heads); }
  // Q K^T and P V
  Work work() const {
    return {.flops = 4 * static_cast<double>(pairs) * static_cast<double>(y.width())};
  }
  // The log of the sum is about the largest score, whose rounding exp magnifies.
  Rounding rounding(std::string_view output, const auto& values) const {
    const std::int64_t length = std::max(values.longest_item(offsets), y.width() / heads);
    const double score = 1 + values.top(lse);
    const std::int64_t rows = query ? y.rows() : values.last(offsets);
    if (output == "lse") return {length, score, rows * heads};
    Rounding rounding{length, score * values.top(qkv), rows * y.width()};
    if (output == "y_norm") {
      rounding = of_norm(rounding, y.width() / heads);
      rounding.elements = rows * heads;
    }
    return rounding;
  }
  static AttentionForward sample(auto& s) {
    return {.y = s.empty({s.rows(), s.size.width}),
            .y_norm = s.wide({s.rows(), s.size.heads}),
            .lse = s.wide({s.rows(), s.size.heads}),
            .qkv = s.random({s.rows(), 3 * s.size.width}),
            .offsets = s.offsets(s.size.items),
            .heads = s.size.heads,
            .pairs = s.rows() * s.size.tokens};
  }
};

// With `query_full`: dy and dquery have a row an item, y_full and lse_full N rows.
struct AttentionBackward {
  static constexpr const char* kName = "attention_backward";
  static constexpr Family kFamily = Family::kAttention;
  Tensor dquery;      // T [items, C], given exactly when query_full is
  Tensor dqkv;        // T [K, 3C], or [K, 2C]
  Tensor dqkv_norm;   // S [K, heads, 2], optional, of [K, 3C]: of a head's query; its key and value
  Tensor dy;          // T [K, C], or [items, C]
  Tensor query_full;  // T [N, C], optional
  Tensor qkv_full;    // T [R, 3C], or [R, 2C]
  Tensor y_full;      // T [R, C], or [N, C]
  Tensor lse_full;    // S [R, heads], or [N, heads]
  Tensor offsets;     // i64 [items + 1], of dqkv
  Tensor offsets_full;  // i64 [N + 1]
  Tensor item;          // i32 [items], optional
  std::int64_t heads = 1;
  std::int64_t pairs = 0;  // as of AttentionForward
  double dropout = 0;
  bool causal = false;
  RandomKey key;
  Tensor step;  // i64 [1], optional: in place of the key's
  template <class V>
  void visit(V&& v) const {
    v.out("dquery", dquery), v.out("dqkv", dqkv), v.out("dqkv_norm", dqkv_norm);
    v.in("dy", dy), v.in("query_full", query_full), v.in("qkv_full", qkv_full);
    v.in("y_full", y_full), v.in("lse_full", lse_full);
    v.in("offsets", offsets), v.in("offsets_full", offsets_full), v.in("item", item);
    v.in("step", step);
  }

  void check() const {
    check_attention(dy, query_full, qkv_full, heads);
    VCAS_CHECK(!dqkv_norm || !query_full, "norms of a query apart");
  }
  // Q K^T again, dV = P^T dY, dP = dY V^T, dQ = dS K, dK = dS^T Q
  Work work() const {
    return {.flops = 10 * static_cast<double>(pairs) * static_cast<double>(dy.width()),
            .rows_read = dqkv.rows()};
  }
  Rounding rounding(std::string_view output, const auto& values) const {
    const double score = 1 + values.top(lse_full), largest = values.top(qkv_full);
    const double largest_query = query_full ? values.top(query_full) : largest;
    const std::int64_t rows = values.last(offsets);
    Rounding rounding{std::max(values.longest_item(offsets), dy.width() / heads),
                      score * values.top(dy) * (1 + largest * std::max(largest, largest_query)),
                      output == "dquery" ? kAll : rows * dqkv.width()};
    if (output == "dqkv_norm") {
      rounding = of_norm(rounding, 2 * dy.width() / heads);
      rounding.elements = rows * heads * 2;
    }
    return rounding;
  }
  static AttentionBackward sample(auto& s) {
    const AttentionForward forward = AttentionForward::sample(s);
    s.run(forward);
    return {.dqkv = s.empty({s.kept_rows(), 3 * s.size.width}),
            .dqkv_norm = s.wide({s.kept_rows(), s.size.heads, 2}),
            .dy = s.random({s.kept_rows(), s.size.width}),
            .qkv_full = forward.qkv,
            .y_full = forward.y,
            .lse_full = forward.lse,
            .offsets = s.offsets(s.kept_items()),
            .offsets_full = forward.offsets,
            .item = s.item(),
            .heads = s.size.heads,
            .pairs = s.kept_rows() * s.size.tokens};
  }
};

}  // namespace vcas

// clang-format off
#define VCAS_ATTENTION_OPS(X) \
  X(AttentionForward) X(AttentionBackward)
// clang-format on
