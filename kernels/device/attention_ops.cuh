// Attention, by tiles of 32 queries and 32 keys of one head of one item, where it is not left to
// tensor cores (attention_mma.cuh). Nothing of size tokens^2 is stored; nothing is added by two
// blocks.
#pragma once

#include "kernels/device/attention_mma.cuh"

namespace vcas::VCAS_DEVICE {

// A thread has one query and four neighbouring keys of a tile, which share a Philox draw; the eight
// threads of a query lie in one warp.
constexpr int kTileRows = 32, kKeysPerThread = kKeysPerDraw;
constexpr int kThreadsPerQuery = kTileRows / kKeysPerThread;
constexpr int kAttentionThreads = kTileRows * kThreadsPerQuery;
constexpr int kScoreStride = kTileRows + 1;

// Whether sums are kept in shared memory until they are complete, and not in the output: where they
// would be rounded there.
template <class T>
constexpr bool kSumsApart = !std::is_same_v<T, Compute<T>>;

// tile[r] = x[first + r], zeros beyond `rows`.
template <class T>
__device__ void load_tile(T* tile, const T* x, std::int64_t stride, std::int64_t first,
                          std::int64_t rows, const HeadShape<T>& shape) {
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * shape.head_width;
       i += kAttentionThreads) {
    const int r = i / shape.head_width, c = i % shape.head_width;
    tile[r * shape.tile_stride() + c] = first + r < rows ? x[(first + r) * stride + c] : T(0);
  }
}

// The product of two rows of tiles.
template <class T>
__device__ Compute<T> row_product(const T* a, const T* b, int width) {
  Compute<T> sum = 0;
  for (int c = 0; c < width; ++c) sum += a[c] * b[c];
  return sum;
}

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
__device__ void attend_tile(T* y, Compute<T>* y_norm, Compute<T>* lse, const Head<T>& head,
                            std::int64_t y_row, std::int64_t first_query,
                            const HeadShape<T>& shape) {
  using C = Compute<T>;
  const int stride = shape.tile_stride(), w = shape.head_width;
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
    const int keys = static_cast<int>(min(std::int64_t{kTileRows}, head.tokens - first_key));
    if (query < head.queries)
      for (int c = part; c < w; c += kThreadsPerQuery) {
        C total = first_key == 0 ? C(0) : sums[c] * shrink;
        for (int j = 0; j < keys; ++j) total += own_p[j] * v[j * stride + c];
        sums[c] = total;
      }
  }
  __syncthreads();  // q has been used
  double squares = 0;
  for (int c = part; query < head.queries && c < w; c += kThreadsPerQuery) {
    const C result = sums[c] / sum;
    out[c] = static_cast<T>(result);
    if (y_norm) squares += squared(result);
  }
  if (y_norm) squares = query_reduce(squares, Plus{});
  if (query >= head.queries || part != 0) return;
  const std::int64_t own = (y_row + query) * shape.heads + blockIdx.y;
  lse[own] = largest + natural_log(sum);
  if (y_norm) y_norm[own] = norm_from_squares<C>(squares);
}

// Blocks (tile, head, item); an item of more tiles than the grid has is gone over in turns.
template <class T>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_forward_kernel(T* y, Compute<T>* y_norm, Compute<T>* lse, const T* query,
                             const T* qkv, const std::int64_t* offsets, HeadShape<T> shape) {
  const std::int64_t n = blockIdx.z, first_row = offsets[n];
  const Head<T> head(query, qkv, n, first_row, offsets[n + 1] - first_row, shape);
  for (std::int64_t tile = blockIdx.x; tile * kTileRows < head.queries; tile += gridDim.x)
    attend_tile(y, y_norm, lse, head, query ? n : first_row, tile * kTileRows, shape);
}

// With kOfKeys, a tile of keys goes over the queries and its dK and dV are written; else a tile of
// queries goes over the keys and its dQ is. Both work P out again. `sums` holds the sums so far.
template <class T, bool kOfKeys>
__device__ void backward_tile(const HeadGradients<T>& t, const Head<T>& head,
                              std::int64_t own_first, const HeadShape<T>& shape) {
  using C = Compute<T>;
  const int stride = shape.tile_stride(), w = shape.head_width;
  VCAS_DYNAMIC_SHARED(C, shared);
  constexpr int kSumTiles = kOfKeys ? 2 : 1;  // of dK and dV, or of dQ
  C* const p = shared;                        // P M, [query, key]
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
      for (int c = part; c < w; c += kThreadsPerQuery) delta += dy[i * stride + c] * y_row[c];
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
    for (int c = part; c < w; c += kThreadsPerQuery) {
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
  if (!kSumsApart<T> && !t.norm) return;
  const bool inside = row < (kOfKeys ? head.tokens : head.queries);
  double squares = 0;
  for (int s = 0; inside && s < kSumTiles; ++s)
    for (int c = part; c < w; c += kThreadsPerQuery) {
      const C sum = sums(s)[c];
      if constexpr (kSumsApart<T>) out(s)[c] = static_cast<T>(sum);
      squares += squared(sum);
    }
  if (!t.norm) return;
  squares = query_reduce(squares, Plus{});
  if (inside && part == 0) t.norm[row * shape.heads * 2 + kOfKeys] = norm_from_squares<C>(squares);
}

// Blocks as in the forward kernel, without atomics on dQ.
template <class T, bool kOfKeys>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_backward_kernel(BackwardTensors<T> t, HeadShape<T> shape) {
  const auto [head, gradients] = backward_work(t, shape);
  const std::int64_t rows = kOfKeys ? head.tokens : head.queries;
  for (std::int64_t tile = blockIdx.x; tile * kTileRows < rows; tile += gridDim.x)
    backward_tile<T, kOfKeys>(gradients, head, tile * kTileRows, shape);
}

// ---- host ----

// `tiles`, `scores` and `sums` say what shared memory holds. Throws Error(kBadConfig) where the
// device has less.
template <class T>
Grid attention_grid(const Context& context, std::int64_t rows, std::int64_t items,
                    const HeadShape<T>& shape, std::int64_t tiles, std::int64_t scores,
                    std::int64_t sums) {
  const std::int64_t wide =
      scores * kScoreStride + (kSumsApart<T> ? sums * shape.tile_stride() : 0);
  const std::size_t bytes =
      kTileRows * (static_cast<std::size_t>(wide) * sizeof(Compute<T>) +
                   static_cast<std::size_t>(tiles * shape.tile_stride()) * sizeof(T));
  if (bytes > context.most_shared_bytes())
    throw Error(ExitCode::kBadConfig,
                "attention heads of width " + std::to_string(shape.head_width) + " need " +
                    std::to_string(bytes >> 10) + " KiB of shared memory, device \"" +
                    context.name() + "\" has " + std::to_string(context.most_shared_bytes() >> 10) +
                    " KiB",
                "give the model more heads (model.heads), which are narrower, or train it on "
                "device=\"cpu\"");
  return grid_of_heads(rows, items, shape.heads, kTileRows, kAttentionThreads, bytes);
}

void compute(Context& context, const AttentionForward& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const HeadShape<T> shape =
        head_shape<T>(args.y, args.query, args.qkv, args.heads, args.dropout, step_key(args));
    if constexpr (!std::is_same_v<T, double>)
      if (attention_forward_mma(context, args, shape)) return;
    launch(context,
           attention_grid(context, args.y.rows(), args.offsets.elements() - 1, shape, 3, 1, 1),
           attention_forward_kernel<T>, args.y.ptr<T>(), args.y_norm.ptr<Compute<T>>(),
           args.lse.ptr<Compute<T>>(), args.query.ptr<T>(), args.qkv.ptr<T>(),
           args.offsets.ptr<std::int64_t>(), shape);
  });
}

void compute(Context& context, const AttentionBackward& args) {
  VCAS_CHECK(!args.dqkv_norm || !args.query_full, "norms of a query apart");
  with_type(args.dqkv.dtype, [&](auto type) {
    using T = decltype(type);
    const HeadShape<T> shape = head_shape<T>(args.dy, args.query_full, args.qkv_full, args.heads,
                                             args.dropout, step_key(args));
    const BackwardTensors<T> tensors{args.dquery.ptr<T>(),
                                     args.dqkv.ptr<T>(),
                                     args.dqkv_norm.ptr<Compute<T>>(),
                                     args.dy.ptr<T>(),
                                     args.query_full.ptr<T>(),
                                     args.qkv_full.ptr<T>(),
                                     args.y_full.ptr<T>(),
                                     args.lse_full.ptr<Compute<T>>(),
                                     args.offsets.ptr<std::int64_t>(),
                                     args.offsets_full.ptr<std::int64_t>(),
                                     args.item.ptr<std::int32_t>()};
    const std::int64_t items = args.offsets.elements() - 1;
    if constexpr (!std::is_same_v<T, double>)
      if (attention_backward_mma(context, args, tensors, shape)) return;
    launch(context, attention_grid(context, args.dqkv.rows(), items, shape, 4, 2, 2),
           attention_backward_kernel<T, true>, tensors, shape);
    launch(context, attention_grid(context, args.dy.rows(), items, shape, 4, 2, 1),
           attention_backward_kernel<T, false>, tensors, shape);
  });
}

}  // namespace vcas::VCAS_DEVICE
