// What the kernels of attention share: heads and items, dropout masks, arguments.
#pragma once

#include <cmath>

#include "kernels/device/launch.cuh"
#include "kernels/dropout.h"

namespace vcas::VCAS_DEVICE {

template <class T>
struct HeadShape {
  std::int64_t width;  // of y
  std::int64_t heads;
  int head_width;
  Compute<T> scale;         // of scores
  bool causal;              // a query attends to no later key
  std::uint32_t threshold;  // dropout (dropout_threshold); 0 = none
  Compute<T> keep_scale;    // 1 / (1 - p)
  StepKey key;
  PhiloxKeys keys;

  __host__ __device__ int tile_stride() const { return head_width + 1; }  // by columns too
};

// The columns of the running block's head (blockIdx.y), from the first row of an item on. `query`
// is null where qkv [R, 3C] has the queries of all rows; else it is [N, C], and qkv is [R, 2C].
template <class T>
struct HeadColumns {
  T* q;
  T* k;
  T* v;
  std::int64_t q_stride, kv_stride;
};

template <class T>
__device__ HeadColumns<T> columns_of(T* query, T* qkv, std::int64_t item, std::int64_t first_row,
                                     std::int64_t width, std::int64_t head_width) {
  const std::int64_t stride = (query ? 2 : 3) * width, column = blockIdx.y * head_width;
  T* const row = qkv + first_row * stride + column;
  T* const k = query ? row : row + width;
  return {query ? query + item * width + column : row, k, k + width, query ? width : stride,
          stride};
}

// What the blocks of grid (tile, head, item) work on. The address of its draws is read once: behind
// an instruction that may write memory it would be read again.
template <class T>
struct Head {
  HeadColumns<const T> in;
  int queries, tokens;       // the queries are all tokens of the item, or its first
  std::uint64_t first_draw;  // of query 0, key 0
  PhiloxAddress address;

  // `item` and `first_row` of the full batch
  __device__ Head(const T* query, const T* qkv, std::int64_t item, std::int64_t first_row,
                  std::int64_t tokens_, const HeadShape<T>& shape)
      : in(columns_of(query, qkv, item, first_row, shape.width, shape.head_width)),
        queries(static_cast<int>(query && tokens_ > 0 ? 1 : tokens_)),
        tokens(static_cast<int>(tokens_)),
        first_draw(static_cast<std::uint64_t>(first_row * shape.heads + blockIdx.y) *
                   kDrawsPerQuery),
        address(shape.key.address()) {}

  // How many of the keys a query may attend to.
  __device__ int keys_of(int query, const HeadShape<T>& shape) const {
    return shape.causal ? min(tokens, query + 1) : tokens;
  }
};

// Neighbouring keys that share a Philox draw.
constexpr int kKeysPerDraw = 4;

// What queries draw that are the same but for the bit of kDropoutQueries, for keys first_key ..
// first_key + 3. Without dropout zeros, which keep.
template <class T>
__device__ Words mask_words(const HeadShape<T>& shape, const Head<T>& head, int query,
                            int first_key) {
  if (!shape.threshold) return {};
  const auto first = static_cast<std::uint64_t>((query & ~kDropoutQueries) * shape.heads);
  return philox_words(
      head.address, shape.keys,
      (head.first_draw + first * kDrawsPerQuery) | static_cast<unsigned>(first_key) / kKeysPerDraw);
}
// The dropout factor by a half of such a word.
template <class T>
__device__ Compute<T> mask_factor(const HeadShape<T>& shape, std::uint32_t word, bool high) {
  return dropout_keeps(word, high, shape.threshold) ? shape.keep_scale : Compute<T>(0);
}

template <class T>
struct BackwardTensors {
  T* dquery;
  T* dqkv;
  Compute<T>* dqkv_norm;  // optional
  const T* dy;
  const T* query_full;
  const T* qkv_full;
  const T* y_full;
  const Compute<T>* lse_full;
  const std::int64_t* offsets;
  const std::int64_t* offsets_full;
  const std::int32_t* item;
};

// With P the probabilities, M the dropout mask / (1 - p) and delta = rowsum(dy y):
// dV = (P M)^T dy, dP = M (dy V^T), dS = P (dP - delta) * scale, dQ = dS K, dK = dS^T Q.
template <class T>
struct HeadGradients {
  HeadColumns<T> out;
  Compute<T>* norm;       // optional: of row 0 of dQ; behind it that of dK and dV
  std::int64_t dy_row;    // of the item's first query
  const T* dy;            // from there on, the columns of the head
  const T* y;             // likewise
  const Compute<T>* lse;  // of the item's first query
};

// What the running block of a backward kernel works on.
template <class T>
struct BackwardWork {
  Head<T> head;
  HeadGradients<T> gradients;
};

template <class T>
__device__ BackwardWork<T> backward_work(const BackwardTensors<T>& t, const HeadShape<T>& shape) {
  const std::int64_t n = blockIdx.z, first_row = t.offsets[n];
  const std::int64_t n_full = at(t.item, n), first_full = t.offsets_full[n_full];
  const std::int64_t column = blockIdx.y * shape.head_width;
  const std::int64_t dy_row = t.query_full ? n : first_row;
  const std::int64_t y_row = t.query_full ? n_full : first_full;
  return {
      Head<T>(t.query_full, t.qkv_full, n_full, first_full, t.offsets[n + 1] - first_row, shape),
      {columns_of(t.dquery, t.dqkv, n, first_row, shape.width, shape.head_width),
       t.dqkv_norm ? t.dqkv_norm + (first_row * shape.heads + blockIdx.y) * 2 : nullptr, dy_row,
       t.dy + dy_row * shape.width + column, t.y_full + y_row * shape.width + column,
       t.lse_full + y_row * shape.heads + blockIdx.y}};
}

// ---- host ----

template <class T>
HeadShape<T> head_shape(std::int64_t width, std::int64_t heads, double dropout, bool causal,
                        const StepKey& key) {
  const std::int64_t head_width = width / heads;
  return {.width = width,
          .heads = heads,
          .head_width = static_cast<int>(head_width),
          .scale = static_cast<Compute<T>>(1 / std::sqrt(static_cast<double>(head_width))),
          .causal = causal,
          .threshold = dropout_threshold(dropout),
          .keep_scale = static_cast<Compute<T>>(dropout_scale(dropout)),
          .key = key,
          .keys = key.keys()};
}

// Blocks (tile, head, item): as many tiles as items of mean length have; kernels go round for more.
inline Grid grid_of_heads(std::int64_t rows, std::int64_t items, std::int64_t heads,
                          std::int64_t tile_rows, int threads, std::size_t shared_bytes) {
  if (items == 0 || rows == 0) return {extent(0), extent(threads)};
  return {extent(ceil_div(ceil_div(rows, items), tile_rows), heads, items), extent(threads),
          shared_bytes};
}

}  // namespace vcas::VCAS_DEVICE
