// One struct of arguments per operation: outputs first, then inputs, then numbers.
//
// T is the compute dtype, f32, f64 or bf16: of activations, of their gradients, and of weights as
// operations read them. S is the statistics dtype (core/tensor.h), T itself but for bf16, where it
// is f32: of norms, scores, probabilities, scales, losses, and of all that an optimizer reads and
// writes: gradients of parameters, the parameters themselves, its moments. Operations compute in S,
// sum in S or wider, and round what they store as T. The CPU has no operations on bf16.
// Index tensors are i32, offsets i64. "optional" tensors may be empty. R, K count rows, C and D
// widths, N items.
// `row` always maps a compact row to a row of the full batch, empty = identity. "+=" means the
// operation adds to what the output holds. `y_norm` is the Euclidean norm of each row of y before y
// is rounded to T, and `dx_norm` that of dx: for RowScore. Each struct lists its tensors in
// `visit`, which decorators use to count bytes, compare backends and name outputs.
#pragma once

#include <array>
#include <cstddef>

#include "core/error.h"
#include "core/philox.h"
#include "core/tensor.h"

namespace vcas {

constexpr std::size_t kMostInGroup = 8;

// Operations of one kind and dtype that do not wait for each other: none reads or writes what
// another writes. A device runs them as one.
template <class Args>
class Group {
 public:
  static constexpr const char* kName = Args::kName;

  Group() = default;
  Group(const Args& one) { add(one); }  // NOLINT: every operation is a group of one
  void add(const Args& one) {
    VCAS_CHECK(size_ < kMostInGroup, std::string("a group of too many: ") + kName);
    each_[size_++] = one;
  }
  std::size_t size() const { return size_; }
  const Args* begin() const { return each_.data(); }
  const Args* end() const { return begin() + size_; }
  const Args& operator[](std::size_t i) const { return each_[i]; }

  template <class V>
  void visit(V&& v) const {
    for (const Args& one : *this) one.visit(v);
  }

 private:
  std::array<Args, kMostInGroup> each_;
  std::size_t size_ = 0;
};

// f(operation) of an operation, or of each one of a group.
template <class Args, class F>
void for_each_of(const Args& args, const F& f) {
  f(args);
}
template <class Args, class F>
void for_each_of(const Group<Args>& group, const F& f) {
  for (const Args& one : group) f(one);
}

enum class Pooling { kFirst, kMean };

// How kept rows are drawn from their probabilities (method: independent draws, or one uniform
// number for all rows; docs/sampling.md).
enum class Selection { kBernoulli, kSystematic };

// y = x W^T + b
struct LinearForward {
  static constexpr const char* kName = "linear_forward";
  Tensor y;       // T [R, D]
  Tensor x;       // T [R, C]
  Tensor weight;  // T [D, C]
  Tensor bias;    // T [D], optional
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.in("x", x), v.in("weight", weight), v.in("bias", bias);
  }
};

// dx = dy W, or dx += dy W
struct LinearBackwardInput {
  static constexpr const char* kName = "linear_backward_input";
  Tensor dx;      // T [R, C]
  Tensor dy;      // T [R, D]
  Tensor weight;  // T [D, C]
  bool accumulate = false;
  template <class V>
  void visit(V&& v) const {
    v.out("dx", dx, accumulate), v.in("dy", dy), v.in("weight", weight);
  }
};

// dW = sum over i < n of scale[i] * dy[kept[i]]^T x_full[row[kept[i]]], n the length of kept, or
// count[0] where an independent draw has left the number on the device.
struct LinearBackwardWeight {
  static constexpr const char* kName = "linear_backward_weight";
  Tensor dweight;           // S [D, C]
  Tensor dy;                // T [K, D]
  Tensor x_full;            // T [R, C]
  Tensor row;               // i32 [K], optional
  Tensor kept;              // i32 [n], optional: all K rows
  Tensor scale;             // S [n], optional: all ones
  Tensor count;             // i32 [1], optional, only with kept
  double expected = 0;      // of count, where it is given: what the product costs
  bool accumulate = false;  // dW += instead of dW =
  template <class V>
  void visit(V&& v) const {
    v.out("dweight", dweight, accumulate), v.in("dy", dy), v.in("x_full", x_full), v.in("row", row);
    v.in("kept", kept), v.in("scale", scale), v.in("count", count);
  }
};

inline void check_count(const LinearBackwardWeight& args) {
  VCAS_CHECK(!args.count || args.kept, "the count of a draw without the draw");
}

// block[a, b] = sum over r of dy[r, out_index[a]] * x_full[row[r], in_index[b]]: some entries of
// dW.
struct LinearWeightBlock {
  static constexpr const char* kName = "linear_weight_block";
  Tensor block;      // S [A, B]
  Tensor dy;         // T [K, D]
  Tensor x_full;     // T [R, C]
  Tensor row;        // i32 [K], optional
  Tensor out_index;  // i32 [A]
  Tensor in_index;   // i32 [B]
  template <class V>
  void visit(V&& v) const {
    v.out("block", block), v.in("dy", dy), v.in("x_full", x_full), v.in("row", row);
    v.in("out_index", out_index), v.in("in_index", in_index);
  }
};

// sum[c] = sum over r of x[r, c]: bias gradients.
struct ColumnSum {
  static constexpr const char* kName = "column_sum";
  Tensor sum;               // S [C]
  Tensor x;                 // T [R, C]
  bool accumulate = false;  // sum += instead of sum =
  template <class V>
  void visit(V&& v) const {
    v.out("sum", sum, accumulate), v.in("x", x);
  }
};

// score[i] = || dy[i] ||_2 * || x_full[row[i]] ||_2. A factor whose norms are given, those of P
// parts of each row, is not read.
struct RowScore {
  static constexpr const char* kName = "row_score";
  Tensor score;        // S [K]
  Tensor dy;           // T [K, D]
  Tensor x_full;       // T [R, C]
  Tensor row;          // i32 [K], optional
  Tensor dy_norm;      // S [K, P], optional
  Tensor x_norm_full;  // S [R, P], optional
  template <class V>
  void visit(V&& v) const {
    v.out("score", score), v.in("row", row);
    dy_norm ? v.in("dy_norm", dy_norm) : v.in("dy", dy);
    x_norm_full ? v.in("x_norm_full", x_norm_full) : v.in("x_full", x_full);
  }
};

inline void check_norms(const RowScore& args) {
  VCAS_CHECK((!args.dy_norm || args.dy_norm.rows() == args.dy.rows()) &&
                 (!args.x_norm_full || args.x_norm_full.rows() == args.x_full.rows()),
             "norms " + args.dy_norm.shape.text() + " and " + args.x_norm_full.shape.text() +
                 " of rows of " + args.dy.shape.text() + " and " + args.x_full.shape.text());
}

// norm[n] = Frobenius norm of the rows offsets[n] .. offsets[n + 1] of x.
struct ItemNorm {
  static constexpr const char* kName = "item_norm";
  Tensor norm;     // S [N]
  Tensor x;        // T [R, C]
  Tensor offsets;  // i64 [N + 1]
  template <class V>
  void visit(V&& v) const {
    v.out("norm", norm), v.in("x", x), v.in("offsets", offsets);
  }
};

// prob[i] = min(1, c * score[i]) with c such that the sum is `budget` (capped proportional
// probabilities). budget >= number of nonzero scores: prob = 1 where score > 0. Zero scores: prob =
// 0. Scale-free: multiplying all scores by 1e-30 or 1e+30 changes nothing. A score that is not
// finite has prob = 1, so that it reaches the gradient, whose check names the tensor; the others
// share what is left of the budget.
struct KeepProbability {
  static constexpr const char* kName = "keep_probability";
  Tensor prob;      // S [n]
  Tensor variance;  // f64 [1], optional: sum over i of (1 - p) / p * score^2 (p > 0)
  Tensor score;     // S [n], >= 0
  double budget = 0;
  template <class V>
  void visit(V&& v) const {
    v.out("prob", prob), v.out("variance", variance), v.in("score", score);
  }
};

// Draws the kept indices, ascending, with P(i kept) = prob[i] and scale 1 / prob[i]; `prob` as of
// KeepProbability.
// kBernoulli: keep i iff u(id[i]) < prob[i], independent; an empty draw is legal.
// kSystematic: exactly K = kept.elements() <= n indices, so that the host knows how many, for a sum
// of prob up to K: i is drawn iff an integer lies in (S[i-1] + u, S[i] + u]; where these are fewer,
// the first others fill up, with scale 0. Of a larger sum the first K that are drawn.
// The draws of a group are by one selection.
struct Draw {
  static constexpr const char* kName = "draw";
  Tensor kept;   // i32 [n], the first count[0] are set; or [K]
  Tensor scale;  // S, likewise
  Tensor count;  // i32 [1], of kBernoulli only
  Tensor prob;   // S [n]
  Tensor score;  // S [n], >= 0
  Tensor id;     // i32 [n], optional: row of the full batch, addresses the random numbers
  double budget = 0;
  Selection selection = Selection::kBernoulli;
  RandomKey key;
  Tensor step;  // i64 [1], optional: in place of the key's
  template <class V>
  void visit(V&& v) const {
    v.out("count", count), v.out("kept", kept), v.out("scale", scale), v.out("prob", prob);
    v.in("score", score), v.in("id", id), v.in("step", step);
  }
};

// Composes a row set with a draw of its items (core/row_set.h): the first K = kept.elements() kept
// items and their rows, offsets[K] of them.
struct NarrowRows {
  static constexpr const char* kName = "narrow_rows";
  Tensor item;         // i32 [K]
  Tensor scale;        // S [K]
  Tensor offsets;      // i64 [K + 1]
  Tensor row;          // i32 [capacity]: full-batch row of each kept row
  Tensor source_row;   // i32 [capacity]: row of the old compact tensor
  Tensor kept;         // i32 [K]
  Tensor kept_scale;   // S [K]
  Tensor old_item;     // i32, optional
  Tensor old_scale;    // S, optional
  Tensor old_offsets;  // i64
  Tensor old_row;      // i32, optional
  template <class V>
  void visit(V&& v) const {
    v.out("offsets", offsets), v.out("item", item), v.out("scale", scale), v.out("row", row);
    v.out("source_row", source_row), v.in("kept", kept), v.in("kept_scale", kept_scale);
    v.in("old_item", old_item), v.in("old_scale", old_scale), v.in("old_offsets", old_offsets);
    v.in("old_row", old_row);
  }
};

// The gate's compaction: y[r] = scale[n] * x[source_row[r]] for the rows r of item n.
struct GatherScaledRows {
  static constexpr const char* kName = "gather_scaled_rows";
  Tensor y;           // T [K_rows, C]
  Tensor y_norm;      // S [K_rows], optional
  Tensor x;           // T [R, C]
  Tensor source_row;  // i32 [K_rows]
  Tensor offsets;     // i64 [K + 1] of y
  Tensor scale;       // S [K]
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.out("y_norm", y_norm), v.in("x", x), v.in("source_row", source_row);
    v.in("offsets", offsets), v.in("scale", scale);
  }
};

// y = (x - mean) * rstd * gamma + beta, mean and rstd = 1 / sqrt(var + eps) of each row.
struct LayerNormForward {
  static constexpr const char* kName = "layer_norm_forward";
  Tensor y;       // T [R, C]
  Tensor y_norm;  // S [R], optional
  Tensor center;  // S [R]: mean of the row less its first entry, for the mean itself would be
                  // rounded by more than a row far from zero deviates from it
  Tensor rstd;    // S [R]
  Tensor x;       // T [R, C]
  Tensor gamma;   // T [C]
  Tensor beta;    // T [C]
  double eps = 1e-5;
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.out("y_norm", y_norm), v.out("center", center), v.out("rstd", rstd);
    v.in("x", x), v.in("gamma", gamma), v.in("beta", beta);
  }
};

struct LayerNormBackward {
  static constexpr const char* kName = "layer_norm_backward";
  Tensor dx;                           // T [K, C], optional
  Tensor added;                        // T [K, C], added to dx, optional; may be dx
  Tensor dx_norm;                      // S [K], optional, only with dx
  Tensor dgamma;                       // S [C], optional; given exactly when dbeta is
  Tensor dbeta;                        // S [C], optional
  Tensor dy;                           // T [K, C]
  Tensor x_full;                       // T [R, C]
  Tensor center_full;                  // S [R]
  Tensor rstd_full;                    // S [R]
  Tensor gamma;                        // T [C]
  Tensor row;                          // i32 [K], optional
  bool accumulate_parameters = false;  // dgamma += instead of dgamma =, likewise dbeta
  template <class V>
  void visit(V&& v) const {
    v.out("dx", dx, added.data == dx.data), v.out("dx_norm", dx_norm);
    if (added.data != dx.data) v.in("added", added);
    v.out("dgamma", dgamma, accumulate_parameters), v.out("dbeta", dbeta, accumulate_parameters);
    v.in("dy", dy), v.in("x_full", x_full), v.in("center_full", center_full);
    v.in("rstd_full", rstd_full), v.in("gamma", gamma), v.in("row", row);
  }
};

// y = x Phi(x), Phi the standard normal distribution function (the erf form).
struct GeluForward {
  static constexpr const char* kName = "gelu_forward";
  Tensor y;       // T [R, C]
  Tensor y_norm;  // S [R], optional
  Tensor x;       // T [R, C]
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.out("y_norm", y_norm), v.in("x", x);
  }
};

struct GeluBackward {
  static constexpr const char* kName = "gelu_backward";
  Tensor dx;       // T [K, C]; may be the same memory as dy
  Tensor dx_norm;  // S [K], optional
  Tensor dy;       // T [K, C]
  Tensor x_full;   // T [R, C]
  Tensor row;      // i32 [K], optional
  template <class V>
  void visit(V&& v) const {
    v.out("dx", dx, dy.data == dx.data), v.out("dx_norm", dx_norm), v.in("x_full", x_full);
    v.in("row", row);
    if (dy.data != dx.data) v.in("dy", dy);
  }
};

// y = tanh(x)
struct TanhForward {
  static constexpr const char* kName = "tanh_forward";
  Tensor y;  // T [R, C]
  Tensor x;  // T [R, C]
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.in("x", x);
  }
};

// dx = dy (1 - y_full[row]^2)
struct TanhBackward {
  static constexpr const char* kName = "tanh_backward";
  Tensor dx;      // T [K, C]; may be the same memory as dy
  Tensor dy;      // T [K, C]
  Tensor y_full;  // T [R, C]
  Tensor row;     // i32 [K], optional
  template <class V>
  void visit(V&& v) const {
    v.out("dx", dx, dy.data == dx.data), v.in("y_full", y_full), v.in("row", row);
    if (dy.data != dx.data) v.in("dy", dy);
  }
};

// y = x * mask / (1 - p), plus the residual where there is one. The mask of entry (r, c) is word c
// % 4 of the Philox draw at index row[r] * ceil(C / 4) + c / 4, kept where uniform >= p. Backward
// is the same operation on dy with `row`.
struct Dropout {
  static constexpr const char* kName = "dropout";
  Tensor y;         // T [K, C]; may be the same memory as x
  Tensor y_norm;    // S [K], optional
  Tensor x;         // T [K, C]
  Tensor residual;  // T [K, C], optional
  Tensor row;       // i32 [K], optional
  double p = 0;
  RandomKey key;
  Tensor step;  // i64 [1], optional: in place of the key's
  template <class V>
  void visit(V&& v) const {
    v.out("y", y, x.data == y.data), v.out("y_norm", y_norm), v.in("residual", residual);
    v.in("row", row), v.in("step", step);
    if (x.data != y.data) v.in("x", x);
  }
};

// Multi-head self-attention over each item's own rows: softmax(Q K^T / sqrt(C / heads)) V, with
// dropout on the probabilities. Query row r, head h, key j of its item draws word j % 4 of the
// Philox draw at index (r * heads + h) * 2^20 + j / 4, r the row of the full batch. With `query`
// only the first row of each item is a query: y and lse have N rows, and qkv holds key and value.
struct AttentionForward {
  static constexpr const char* kName = "attention_forward";
  Tensor y;        // T [R, C], or [N, C]
  Tensor y_norm;   // S [R, heads], or [N, heads], optional: of each head's part
  Tensor lse;      // S [R, heads], or [N, heads]: log of the sum of exponentials of the scores
  Tensor query;    // T [N, C], optional
  Tensor qkv;      // T [R, 3C]: query, key, value side by side; or [R, 2C]: key, value
  Tensor offsets;  // i64 [N + 1]
  std::int64_t heads = 1;
  std::int64_t pairs = 0;  // of a query and a key, where the caller counts them: what it costs
  double dropout = 0;
  RandomKey key;
  Tensor step;  // i64 [1], optional: in place of the key's
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.out("y_norm", y_norm), v.out("lse", lse), v.in("query", query);
    v.in("qkv", qkv), v.in("offsets", offsets), v.in("step", step);
  }
};

// With `query_full`: dy and dquery have a row an item, y_full and lse_full N rows.
struct AttentionBackward {
  static constexpr const char* kName = "attention_backward";
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
};

// y = a + b
struct Add {
  static constexpr const char* kName = "add";
  Tensor y;  // T, any shape; may be the same memory as a
  Tensor a;
  Tensor b;
  template <class V>
  void visit(V&& v) const {
    v.out("y", y, a.data == y.data), v.in("b", b);
    if (a.data != y.data) v.in("a", a);
  }
};

struct Copy {
  static constexpr const char* kName = "copy";
  Tensor y;  // any dtype and shape
  Tensor x;
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.in("x", x);
  }
};

struct Fill {
  static constexpr const char* kName = "fill";
  Tensor y;  // T or S
  double value = 0;
  template <class V>
  void visit(V&& v) const {
    v.out("y", y);
  }
};

// y[n * P + j, (channel * patch + dy) * patch + dx]: the P = (height / patch) * (width / patch)
// patches of image item[n], row by row.
struct PatchExtract {
  static constexpr const char* kName = "patch_extract";
  Tensor y;      // T [K * P, channels * patch * patch]
  Tensor image;  // f32 [N, channels, height, width]
  Tensor item;   // i32 [K], optional
  std::int64_t patch = 1;
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.in("image", image), v.in("item", item);
  }
};

// y[n, t] = position[t] + (cls row first, then the item's patch rows); without cls, T = P.
struct PatchTokensForward {
  static constexpr const char* kName = "patch_tokens_forward";
  Tensor y;         // T [N, T, C]
  Tensor patches;   // T [N, P, C]
  Tensor cls;       // T [C], optional: T = P + 1 with it, T = P without
  Tensor position;  // T [T, C]
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.in("patches", patches), v.in("cls", cls), v.in("position", position);
  }
};

struct PatchTokensBackward {
  static constexpr const char* kName = "patch_tokens_backward";
  Tensor dpatches;   // T [K, P, C]
  Tensor dcls;       // S [C], +=, optional
  Tensor dposition;  // S [T, C], +=, optional: no parameter gradient is wanted
  Tensor dy;         // T [K, T, C]
  template <class V>
  void visit(V&& v) const {
    v.out("dpatches", dpatches), v.out("dcls", dcls, true), v.out("dposition", dposition, true);
    v.in("dy", dy);
  }
};

// y[n] = the first row of item n, or the mean of its rows.
struct PoolForward {
  static constexpr const char* kName = "pool_forward";
  Tensor y;        // T [N, C]
  Tensor x;        // T [R, C]
  Tensor offsets;  // i64 [N + 1]
  Pooling pooling = Pooling::kFirst;
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.in("x", x), v.in("offsets", offsets);
  }
};

struct PoolBackward {
  static constexpr const char* kName = "pool_backward";
  Tensor dx;       // T [R, C]
  Tensor dy;       // T [N, C]
  Tensor offsets;  // i64 [N + 1]
  Pooling pooling = Pooling::kFirst;
  template <class V>
  void visit(V&& v) const {
    v.out("dx", dx), v.in("dy", dy), v.in("offsets", offsets);
  }
};

// loss[n] = - sum over classes of q log softmax(logits[n]), q = (1 - smoothing) onehot(label) +
// smoothing / classes. correct[n] = 1 where the largest logit (the first of equal ones) is the
// label's.
struct CrossEntropyForward {
  static constexpr const char* kName = "cross_entropy_forward";
  Tensor loss;     // S [N]
  Tensor correct;  // i32 [N]
  Tensor logits;   // T [N, classes]
  Tensor labels;   // i32 [N]
  double smoothing = 0;
  template <class V>
  void visit(V&& v) const {
    v.out("loss", loss), v.out("correct", correct), v.in("logits", logits), v.in("labels", labels);
  }
};

// dlogits = scale * (softmax(logits) - q)
struct CrossEntropyBackward {
  static constexpr const char* kName = "cross_entropy_backward";
  Tensor dlogits;  // T [N, classes]
  Tensor logits;   // T [N, classes]
  Tensor labels;   // i32 [N]
  double smoothing = 0;
  double scale = 1;
  template <class V>
  void visit(V&& v) const {
    v.out("dlogits", dlogits), v.in("logits", logits), v.in("labels", labels);
  }
};

// y[r] = table[tokens[r]]
struct EmbeddingForward {
  static constexpr const char* kName = "embedding_forward";
  Tensor y;       // T [R, C]
  Tensor table;   // T [V, C]
  Tensor tokens;  // i32 [R]
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.in("table", table), v.in("tokens", tokens);
  }
};

// dtable[tokens_full[row[r]]] += dy[r], rows in ascending order for each entry.
struct EmbeddingBackward {
  static constexpr const char* kName = "embedding_backward";
  Tensor dtable;       // S [V, C], +=
  Tensor dy;           // T [K, C]
  Tensor tokens_full;  // i32 [R]
  Tensor row;          // i32 [K], optional
  template <class V>
  void visit(V&& v) const {
    v.out("dtable", dtable, true), v.in("dy", dy), v.in("tokens_full", tokens_full),
        v.in("row", row);
  }
};

// loss[n] = (prediction[n] - target[n])^2
struct SquaredErrorForward {
  static constexpr const char* kName = "squared_error_forward";
  Tensor loss;        // S [N]
  Tensor prediction;  // T [N]
  Tensor target;      // f32 [N]
  template <class V>
  void visit(V&& v) const {
    v.out("loss", loss), v.in("prediction", prediction), v.in("target", target);
  }
};

// dprediction = scale * 2 (prediction - target)
struct SquaredErrorBackward {
  static constexpr const char* kName = "squared_error_backward";
  Tensor dprediction;  // T [N]
  Tensor prediction;   // T [N]
  Tensor target;       // f32 [N]
  double scale = 1;
  template <class V>
  void visit(V&& v) const {
    v.out("dprediction", dprediction), v.in("prediction", prediction), v.in("target", target);
  }
};

// The gradient of y[p] = x[index[p]], which is EmbeddingForward with x as its table: dx = 0, then
// for the rows p of item n, in ascending order, with r = index_full[row[p]] a row of that item in
// the full batch: dx[offsets[n] + r - offsets_full[item[n]]] += dy[p], rounded to T each time.
struct ScatterRows {
  static constexpr const char* kName = "scatter_rows";
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
};

// Updates of parameters take the gradient times clip_scale (kernels/clipping.h) of the squared norm
// of the gradient of all parameters, f64 [1]; where that is not finite they change nothing.
// `rounded` gets the new parameters too.

// Adam (Kingma & Ba 2015) with bias correction; decoupled weight decay (Loshchilov & Hutter 2019)
// or, with decoupled = false, decay added to the gradient.
struct AdamStep {
  static constexpr const char* kName = "adam_step";
  Tensor param;          // S [n]
  Tensor rounded;        // bf16 [n], optional
  Tensor first_moment;   // S [n]
  Tensor second_moment;  // S [n]
  Tensor grad;           // S [n]
  Tensor squared_norm;   // f64 [1]
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double max_norm = 0;    // longer gradients are scaled down to it; 0: never
  std::int64_t step = 1;  // from 1
  bool decoupled = true;
  template <class V>
  void visit(V&& v) const {
    v.out("param", param, true), v.out("rounded", rounded);
    v.out("first_moment", first_moment, true), v.out("second_moment", second_moment, true);
    v.in("grad", grad), v.in("squared_norm", squared_norm);
  }
};

// momentum = mu * momentum + (clip_scale * grad + weight_decay * param); param -= lr * momentum.
struct SgdStep {
  static constexpr const char* kName = "sgd_step";
  Tensor param;         // S [n]
  Tensor rounded;       // bf16 [n], optional
  Tensor momentum;      // S [n]
  Tensor grad;          // S [n]
  Tensor squared_norm;  // f64 [1]
  double learning_rate = 0, mu = 0.9, weight_decay = 0;
  double max_norm = 0;
  template <class V>
  void visit(V&& v) const {
    v.out("param", param, true), v.out("rounded", rounded), v.out("momentum", momentum, true);
    v.in("grad", grad), v.in("squared_norm", squared_norm);
  }
};

// sum[0] = sum of x^2, in a fixed order, + 0 * earlier[0]: not finite where `earlier` is not.
struct SumSquares {
  static constexpr const char* kName = "sum_squares";
  Tensor sum;      // f64 [1]
  Tensor x;        // S
  Tensor earlier;  // f64 [1], optional
  template <class V>
  void visit(V&& v) const {
    v.out("sum", sum), v.in("x", x), v.in("earlier", earlier);
  }
};

// The key of an operation that draws random numbers, for the backend.
template <class Args>
StepKey step_key(const Args& args) {
  return {args.key, args.step.template ptr<std::int64_t>()};
}

}  // namespace vcas

// Every operation, for the interface, its implementations and decorators.
// clang-format off
#define VCAS_FOR_EACH_OP(X)                                                                      \
  X(LinearForward) X(LinearBackwardInput) X(Group<LinearBackwardWeight>) X(LinearWeightBlock)    \
  X(Group<ColumnSum>) X(Group<RowScore>) X(ItemNorm) X(KeepProbability) X(Group<Draw>)           \
  X(Group<NarrowRows>) X(GatherScaledRows) X(LayerNormForward) X(LayerNormBackward)              \
  X(GeluForward) X(GeluBackward) X(TanhForward) X(TanhBackward) X(Dropout) X(AttentionForward)   \
  X(AttentionBackward) X(Add) X(Copy) X(Fill) X(PatchExtract) X(PatchTokensForward)              \
  X(PatchTokensBackward) X(PoolForward) X(PoolBackward) X(CrossEntropyForward)                   \
  X(CrossEntropyBackward) X(EmbeddingForward) X(EmbeddingBackward) X(SquaredErrorForward)        \
  X(SquaredErrorBackward) X(ScatterRows) X(AdamStep) X(SgdStep) X(SumSquares)
// clang-format on
