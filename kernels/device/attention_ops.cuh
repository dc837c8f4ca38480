// Attention, by tiles of 32 queries and 32 keys of one head of one item. Nothing of size tokens^2
// is stored; nothing is added by two blocks.
#pragma once

#include "kernels/device/math.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/dropout.h"

namespace vcas::VCAS_DEVICE {

// A thread has one query and four neighbouring keys of a tile, which share a Philox draw; the eight
// threads of a query lie in one warp.
constexpr int kTileRows = 32, kKeysPerThread = 4;
constexpr int kThreadsPerQuery = kTileRows / kKeysPerThread;
constexpr int kAttentionThreads = kTileRows * kThreadsPerQuery;
constexpr int kScoreStride = kTileRows + 1;

// Whether sums are kept in shared memory until they are complete, and not in the output: where they
// would be rounded there.
template <class T>
constexpr bool kSumsApart = !std::is_same_v<T, Compute<T>>;

template <class T>
struct HeadShape {
  std::int64_t width;  // of y
  std::int64_t heads, head_width;
  Compute<T> scale;         // of scores
  std::uint32_t threshold;  // dropout (dropout_threshold); 0 = none
  Compute<T> keep_scale;    // 1 / (1 - p)
  StepKey key;

  __host__ __device__ std::int64_t tile_stride() const { return head_width + 1; }  // by columns too
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

// What the blocks of grid (tile, head, item) work on.
template <class T>
struct Head {
  HeadColumns<const T> in;
  std::int64_t queries, tokens;  // the queries are all tokens of the item, or its first
  std::uint64_t first_draw;      // of query 0, key 0

  // `item` and `first_row` of the full batch
  __device__ Head(const T* query, const T* qkv, std::int64_t item, std::int64_t first_row,
                  std::int64_t tokens_, const HeadShape<T>& shape)
      : in(columns_of(query, qkv, item, first_row, shape.width, shape.head_width)),
        queries(query && tokens_ > 0 ? 1 : tokens_),
        tokens(tokens_),
        first_draw(static_cast<std::uint64_t>(first_row * shape.heads + blockIdx.y) *
                   kDrawsPerQuery) {}
};

// tile[r] = x[first + r], zeros beyond `rows`.
template <class T>
__device__ void load_tile(T* tile, const T* x, std::int64_t stride, std::int64_t first,
                          std::int64_t rows, const HeadShape<T>& shape) {
  for (std::int64_t i = threadIdx.x; i < kTileRows * shape.head_width; i += kAttentionThreads) {
    const std::int64_t r = i / shape.head_width, c = i % shape.head_width;
    tile[r * shape.tile_stride() + c] = first + r < rows ? x[(first + r) * stride + c] : T(0);
  }
}

// The product of two rows of tiles.
template <class T>
__device__ Compute<T> row_product(const T* a, const T* b, std::int64_t width) {
  Compute<T> sum = 0;
  for (std::int64_t c = 0; c < width; ++c) sum += a[c] * b[c];
  return sum;
}

// The dropout factors of a query for keys first_key .. first_key + 3.
template <class T>
struct Mask {
  Compute<T> factor[kKeysPerThread] = {1, 1, 1, 1};

  __device__ Mask(const HeadShape<T>& shape, const Head<T>& head, std::int64_t query,
                  std::int64_t first_key) {
    if (!shape.threshold) return;
    const std::uint64_t draw = head.first_draw +
                               static_cast<std::uint64_t>(query * shape.heads) * kDrawsPerQuery +
                               static_cast<std::uint64_t>(first_key / kKeysPerThread);
    const Words words = philox_words(shape.key.address(), draw);
    for (int j = 0; j < kKeysPerThread; ++j)
      factor[j] = (words.word[j] >> 9) >= shape.threshold ? shape.keep_scale : Compute<T>(0);
  }
};

// Reduces over the eight threads of a query.
template <class T, class Op>
__device__ T query_reduce(T value, const Op& op) {
  for (int distance = kThreadsPerQuery / 2; distance > 0; distance /= 2)
    value = op(value, __shfl_xor_sync(kAllLanes, value, distance));
  return value;
}

// A tile of queries going over the keys: softmax with a running maximum. `sums` holds the sum so
// far; each entry belongs to one thread.
template <class T>
__device__ void attend_tile(T* y, Compute<T>* lse, const Head<T>& head, std::int64_t y_row,
                            std::int64_t first_query, const HeadShape<T>& shape) {
  using C = Compute<T>;
  const std::int64_t stride = shape.tile_stride(), w = shape.head_width;
  VCAS_DYNAMIC_SHARED(C, shared);
  C* const p = shared;
  C* const apart = p + kTileRows * kScoreStride;
  T* const q = reinterpret_cast<T*>(apart + (kSumsApart<T> ? kTileRows * stride : 0));
  T* const k = q + kTileRows * stride;
  T* const v = k + kTileRows * stride;

  const int i = static_cast<int>(threadIdx.x) / kThreadsPerQuery;
  const int part = static_cast<int>(threadIdx.x) % kThreadsPerQuery;
  const std::int64_t query = first_query + i;
  T* const out = y + (y_row + query) * shape.width + blockIdx.y * w;
  C* sums = apart + i * stride;
  if constexpr (!kSumsApart<T>) sums = out;
  C* const own_p = p + i * kScoreStride;
  C largest = -infinity<C>(), sum = 0;
  load_tile(q, head.in.q, head.in.q_stride, first_query, head.queries, shape);
  for (std::int64_t first_key = 0; first_key < head.tokens; first_key += kTileRows) {
    __syncthreads();  // the last keys, and p, have been used
    load_tile(k, head.in.k, head.in.kv_stride, first_key, head.tokens, shape);
    load_tile(v, head.in.v, head.in.kv_stride, first_key, head.tokens, shape);
    __syncthreads();
    const std::int64_t own_key = first_key + part * kKeysPerThread;
    C score[kKeysPerThread];
    C new_largest = largest;
    for (int j = 0; j < kKeysPerThread; ++j) {
      score[j] = own_key + j < head.tokens
                     ? row_product(q + i * stride, k + (part * kKeysPerThread + j) * stride, w) *
                           shape.scale
                     : -infinity<C>();
      new_largest = Maximum{}(new_largest, score[j]);
    }
    new_largest = query_reduce(new_largest, Maximum{});
    const C shrink = exponential(largest - new_largest);
    const Mask<T> mask(shape, head, query, own_key);
    C added = 0;
    for (int j = 0; j < kKeysPerThread; ++j) {
      const C e = exponential(score[j] - new_largest);
      added += e;
      own_p[part * kKeysPerThread + j] = e * mask.factor[j];
    }
    sum = sum * shrink + query_reduce(added, Plus{});
    largest = new_largest;
    __syncwarp();  // p is complete for the queries of this warp
    const std::int64_t keys = min(static_cast<std::int64_t>(kTileRows), head.tokens - first_key);
    if (query < head.queries)
      for (std::int64_t c = part; c < w; c += kThreadsPerQuery) {
        C total = first_key == 0 ? C(0) : sums[c] * shrink;
        for (std::int64_t j = 0; j < keys; ++j) total += own_p[j] * v[j * stride + c];
        sums[c] = total;
      }
  }
  __syncthreads();  // q has been used
  if (query >= head.queries) return;
  for (std::int64_t c = part; c < w; c += kThreadsPerQuery) out[c] = static_cast<T>(sums[c] / sum);
  if (part == 0) lse[(y_row + query) * shape.heads + blockIdx.y] = largest + natural_log(sum);
}

// Blocks (tile, head, item); an item of more tiles than the grid has is gone over in turns.
template <class T>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_forward_kernel(T* y, Compute<T>* lse, const T* query, const T* qkv,
                             const std::int64_t* offsets, HeadShape<T> shape) {
  const std::int64_t n = blockIdx.z, first_row = offsets[n];
  const Head<T> head(query, qkv, n, first_row, offsets[n + 1] - first_row, shape);
  for (std::int64_t tile = blockIdx.x; tile * kTileRows < head.queries; tile += gridDim.x)
    attend_tile(y, lse, head, query ? n : first_row, tile * kTileRows, shape);
}

template <class T>
struct BackwardTensors {
  T* dquery;
  T* dqkv;
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
// With kOfKeys, a tile of keys goes over the queries and its dK and dV are written; else a tile of
// queries goes over the keys and its dQ is. Both work P out again. `sums` holds the sums so far.
template <class T>
struct HeadGradients {
  HeadColumns<T> out;
  const T* dy;            // from the item's first query on, the columns of the head
  const T* y;             // likewise
  const Compute<T>* lse;  // of the item's first query
};

template <class T, bool kOfKeys>
__device__ void backward_tile(const HeadGradients<T>& t, const Head<T>& head,
                              std::int64_t own_first, const HeadShape<T>& shape) {
  using C = Compute<T>;
  const std::int64_t stride = shape.tile_stride(), w = shape.head_width;
  VCAS_DYNAMIC_SHARED(C, shared);
  constexpr int kSumTiles = kOfKeys ? 2 : 1;
  C* const p = shared;  // P M, [query, key]
  C* const ds = p + kTileRows * kScoreStride;
  C* const apart = ds + kTileRows * kScoreStride;
  T* const q = reinterpret_cast<T*>(apart + (kSumsApart<T> ? kSumTiles * kTileRows * stride : 0));
  T* const k = q + kTileRows * stride;
  T* const v = k + kTileRows * stride;
  T* const dy = v + kTileRows * stride;

  const int i = static_cast<int>(threadIdx.x) / kThreadsPerQuery;
  const int part = static_cast<int>(threadIdx.x) % kThreadsPerQuery;
  const std::int64_t row = own_first + i;  // of keys or queries
  // Of dK and dV, or of dQ: this thread's row, and where its sums are.
  const auto out = [&](int s) -> T* {
    if constexpr (kOfKeys)
      return (s == 0 ? t.out.k : t.out.v) + row * t.out.kv_stride;
    else
      return t.out.q + row * t.out.q_stride;
  };
  const auto sums = [&](int s) -> C* {
    if constexpr (kSumsApart<T>)
      return apart + (s * kTileRows + i) * stride;
    else
      return out(s);
  };
  for (std::int64_t first = 0; first < (kOfKeys ? head.queries : head.tokens); first += kTileRows) {
    const std::int64_t first_query = kOfKeys ? first : own_first;
    const std::int64_t first_key = kOfKeys ? own_first : first;
    __syncthreads();  // the last tiles have been used
    load_tile(q, head.in.q, head.in.q_stride, first_query, head.queries, shape);
    load_tile(dy, t.dy, shape.width, first_query, head.queries, shape);
    load_tile(k, head.in.k, head.in.kv_stride, first_key, head.tokens, shape);
    load_tile(v, head.in.v, head.in.kv_stride, first_key, head.tokens, shape);
    __syncthreads();

    const std::int64_t query = first_query + i, own_key = first_key + part * kKeysPerThread;
    C delta = 0, log_sum = 0;
    if (query < head.queries) {
      const T* y_row = t.y + query * shape.width;
      for (std::int64_t c = part; c < w; c += kThreadsPerQuery)
        delta += dy[i * stride + c] * y_row[c];
      log_sum = t.lse[query * shape.heads];
    }
    delta = query_reduce(delta, Plus{});
    const Mask<T> mask(shape, head, query, own_key);
    for (int j = 0; j < kKeysPerThread; ++j) {
      const int key = part * kKeysPerThread + j;
      C probability = 0, slope = 0;
      if (query < head.queries && own_key + j < head.tokens) {
        const C score = row_product(q + i * stride, k + key * stride, w) * shape.scale;
        probability = exponential(score - log_sum);
        const C dp = row_product(dy + i * stride, v + key * stride, w) * mask.factor[j];
        slope = probability * (dp - delta) * shape.scale;
      }
      p[i * kScoreStride + key] = probability * mask.factor[j];
      ds[i * kScoreStride + key] = slope;
    }
    __syncthreads();

    if (row >= (kOfKeys ? head.tokens : head.queries)) continue;
    for (std::int64_t c = part; c < w; c += kThreadsPerQuery) {
      if (kOfKeys) {
        C* const dk = sums(0) + c;
        C* const dv = sums(1) + c;
        C sum_k = first == 0 ? C(0) : *dk, sum_v = first == 0 ? C(0) : *dv;
        for (int j = 0; j < kTileRows; ++j) {
          sum_k += ds[j * kScoreStride + i] * q[j * stride + c];
          sum_v += p[j * kScoreStride + i] * dy[j * stride + c];
        }
        *dk = sum_k;
        *dv = sum_v;
      } else {
        C* const dq = sums(0) + c;
        C sum = first == 0 ? C(0) : *dq;
        for (int j = 0; j < kTileRows; ++j) sum += ds[i * kScoreStride + j] * k[j * stride + c];
        *dq = sum;
      }
    }
  }
  if constexpr (kSumsApart<T>) {
    if (row >= (kOfKeys ? head.tokens : head.queries)) return;
    for (int s = 0; s < kSumTiles; ++s)
      for (std::int64_t c = part; c < w; c += kThreadsPerQuery)
        out(s)[c] = static_cast<T>(sums(s)[c]);
  }
}

// Blocks as in the forward kernel, without atomics on dQ.
template <class T, bool kOfKeys>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_backward_kernel(BackwardTensors<T> t, HeadShape<T> shape) {
  const std::int64_t n = blockIdx.z, first_row = t.offsets[n];
  const std::int64_t n_full = at(t.item, n), first_full = t.offsets_full[n_full];
  const Head<T> head(t.query_full, t.qkv_full, n_full, first_full, t.offsets[n + 1] - first_row,
                     shape);
  const std::int64_t column = blockIdx.y * shape.head_width;
  const std::int64_t y_row = t.query_full ? n_full : first_full;
  const HeadGradients<T> gradients{
      columns_of(t.dquery, t.dqkv, n, first_row, shape.width, shape.head_width),
      t.dy + (t.query_full ? n : first_row) * shape.width + column,
      t.y_full + y_row * shape.width + column, t.lse_full + y_row * shape.heads + blockIdx.y};
  const std::int64_t rows = kOfKeys ? head.tokens : head.queries;
  for (std::int64_t tile = blockIdx.x; tile * kTileRows < rows; tile += gridDim.x)
    backward_tile<T, kOfKeys>(gradients, head, tile * kTileRows, shape);
}

// ---- host ----

template <class T>
HeadShape<T> head_shape(const Tensor& y, const Tensor& query, const Tensor& qkv, std::int64_t heads,
                        double dropout, const StepKey& key) {
  const std::int64_t width = y.width(), head_width = width / heads;
  VCAS_CHECK(qkv.width() == (query ? 2 : 3) * width && width % heads == 0,
             "attention of " + std::to_string(heads) + " heads with y " + y.shape.text() +
                 ", qkv " + qkv.shape.text());
  return {.width = width,
          .heads = heads,
          .head_width = head_width,
          .scale = static_cast<Compute<T>>(1 / std::sqrt(static_cast<double>(head_width))),
          .threshold = dropout_threshold(dropout),
          .keep_scale = static_cast<Compute<T>>(1 / (1 - dropout)),
          .key = key};
}

// One tile each of items of mean length; `tiles`, `scores` and `sums` say what shared memory holds.
template <class T>
Grid attention_grid(std::int64_t rows, std::int64_t items, const HeadShape<T>& shape,
                    std::int64_t tiles, std::int64_t scores, std::int64_t sums) {
  if (items == 0 || rows == 0) return {extent(0), extent(kAttentionThreads)};
  const std::int64_t wide =
      scores * kScoreStride + (kSumsApart<T> ? sums * shape.tile_stride() : 0);
  const std::size_t bytes = static_cast<std::size_t>(wide) * sizeof(Compute<T>) +
                            static_cast<std::size_t>(tiles * shape.tile_stride()) * sizeof(T);
  return {extent(ceil_div(ceil_div(rows, items), kTileRows), shape.heads, items),
          extent(kAttentionThreads), kTileRows * bytes};
}

void compute(Context& context, const AttentionForward& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const HeadShape<T> shape =
        head_shape<T>(args.y, args.query, args.qkv, args.heads, args.dropout, step_key(args));
    launch(context, attention_grid(args.y.rows(), args.offsets.elements() - 1, shape, 3, 1, 1),
           attention_forward_kernel<T>, args.y.ptr<T>(), args.lse.ptr<Compute<T>>(),
           args.query.ptr<T>(), args.qkv.ptr<T>(), args.offsets.ptr<std::int64_t>(), shape);
  });
}

void compute(Context& context, const AttentionBackward& args) {
  with_type(args.dqkv.dtype, [&](auto type) {
    using T = decltype(type);
    const HeadShape<T> shape = head_shape<T>(args.dy, args.query_full, args.qkv_full, args.heads,
                                             args.dropout, step_key(args));
    const BackwardTensors<T> tensors{args.dquery.ptr<T>(),
                                     args.dqkv.ptr<T>(),
                                     args.dy.ptr<T>(),
                                     args.query_full.ptr<T>(),
                                     args.qkv_full.ptr<T>(),
                                     args.y_full.ptr<T>(),
                                     args.lse_full.ptr<Compute<T>>(),
                                     args.offsets.ptr<std::int64_t>(),
                                     args.offsets_full.ptr<std::int64_t>(),
                                     args.item.ptr<std::int32_t>()};
    const std::int64_t items = args.offsets.elements() - 1;
    launch(context, attention_grid(args.dqkv.rows(), items, shape, 4, 2, 2),
           attention_backward_kernel<T, true>, tensors, shape);
    launch(context, attention_grid(args.dy.rows(), items, shape, 4, 2, 1),
           attention_backward_kernel<T, false>, tensors, shape);
  });
}

}  // namespace vcas::VCAS_DEVICE
