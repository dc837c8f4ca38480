// Attention: which kernels run, and those without tensor cores. The others are in attention_mma.cuh
// and attention_backward_mma.cuh. Tiles here are 32 queries and 32 keys of one head of one item.
// Nothing of size tokens^2 is stored. No two blocks add to one sum.
#pragma once

#include "kernels/device/attention_backward_mma.cuh"

namespace vcas::VCAS_DEVICE {

// A thread has one query and four neighbouring keys of a tile. The four keys share a Philox draw.
// The eight threads of a query lie in one warp.
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
__device__ void load_tile(T* tile, const T* x, std::int64_t stride, int first, int rows,
                          const HeadShape<T>& shape) {
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
                            std::int64_t y_row, int first_query, const HeadShape<T>& shape) {
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
  const int query = first_query + i;
  T* const out = y + (y_row + query) * shape.width + blockIdx.y * w;
  C* sums = apart + i * stride;
  if constexpr (!kSumsApart<T>) sums = out;
  C* const own_p = p + i * kScoreStride;
  C largest = -infinity<C>(), sum = 0;
  load_tile(q, head.in.q, head.in.q_stride, first_query, head.queries, shape);
  const int visible = head.keys_of(query, shape);
  const int keys = head.keys_of(first_query + kTileRows - 1, shape);
  for (int first_key = 0; first_key < keys; first_key += kTileRows) {
    __syncthreads();  // the last keys, and p, have been used
    load_tile(k, head.in.k, head.in.kv_stride, first_key, head.tokens, shape);
    load_tile(v, head.in.v, head.in.kv_stride, first_key, head.tokens, shape);
    __syncthreads();
    const int own_key = first_key + part * kKeysPerThread;
    C score[kKeysPerThread];
    C new_largest = largest;
    for (int j = 0; j < kKeysPerThread; ++j) {
      score[j] = own_key + j < visible
                     ? rounded_product(
                           row_product(q + i * stride, k + (part * kKeysPerThread + j) * stride, w),
                           shape.scale)
                     : -infinity<C>();
      new_largest = Maximum{}(new_largest, score[j]);
    }
    new_largest = query_reduce(new_largest, Maximum{});
    const C shrink = exponential(largest - new_largest);
    const Words words = mask_words(shape, head, query, own_key);
    const auto mask = [&](int j) {
      return mask_factor(shape, words.word[j], query & kDropoutQueries);
    };
    C added = 0;
    for (int j = 0; j < kKeysPerThread; ++j) {
      const C e = exponential(score[j] - new_largest);
      added += e;
      own_p[part * kKeysPerThread + j] = e * mask(j);
    }
    sum = sum * shrink + query_reduce(added, Plus{});
    largest = new_largest;
    __syncwarp();  // p is complete for the queries of this warp
    const int tile_keys = min(kTileRows, keys - first_key);
    if (query < head.queries)
      for (int c = part; c < w; c += kThreadsPerQuery) {
        C total = first_key == 0 ? C(0) : sums[c] * shrink;
        for (int j = 0; j < tile_keys; ++j) total += own_p[j] * v[j * stride + c];
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
  const int step = static_cast<int>(gridDim.x) * kTileRows;
  for (int first = static_cast<int>(blockIdx.x) * kTileRows; first < head.queries; first += step)
    attend_tile(y, y_norm, lse, head, query ? n : first_row, first, shape);
}

// A tile of keys going over the queries. `sums` holds the sums of dK and dV so far. `dq_sums` holds
// those of dQ over the tiles of keys so far. The last tile that a query attends to stores its dQ.
template <class T>
__device__ void backward_tile(const HeadGradients<T>& t, Compute<T>* dq_sums, const Head<T>& head,
                              int first_key, const HeadShape<T>& shape) {
  using C = Compute<T>;
  const int stride = shape.tile_stride(), w = shape.head_width;
  VCAS_DYNAMIC_SHARED(C, shared);
  C* const p = shared;  // P M, [query, key]
  C* const ds = p + kTileRows * kScoreStride;
  C* const apart = ds + kTileRows * kScoreStride;
  T* const q = reinterpret_cast<T*>(apart + (kSumsApart<T> ? 2 * kTileRows * stride : 0));
  T* const k = q + kTileRows * stride;
  T* const v = k + kTileRows * stride;
  T* const dy = v + kTileRows * stride;

  const int i = static_cast<int>(threadIdx.x) / kThreadsPerQuery;
  const int part = static_cast<int>(threadIdx.x) % kThreadsPerQuery;
  const int key = first_key + i;  // this thread's, of the sums
  T* const out[] = {t.out.k + key * t.out.kv_stride, t.out.v + key * t.out.kv_stride};
  C* sums[] = {apart + i * stride, apart + (kTileRows + i) * stride};
  if constexpr (!kSumsApart<T>)
    for (int s = 0; s < 2; ++s) sums[s] = out[s];
  const bool is_key = key < head.tokens;
  for (int c = part; is_key && c < w; c += kThreadsPerQuery) sums[0][c] = sums[1][c] = 0;

  __syncthreads();  // the last tiles have been used
  load_tile(k, head.in.k, head.in.kv_stride, first_key, head.tokens, shape);
  load_tile(v, head.in.v, head.in.kv_stride, first_key, head.tokens, shape);
  for (int first = shape.causal ? first_key : 0; first < head.queries; first += kTileRows) {
    __syncthreads();  // the last queries, p and ds have been used
    load_tile(q, head.in.q, head.in.q_stride, first, head.queries, shape);
    load_tile(dy, t.dy, shape.width, first, head.queries, shape);
    __syncthreads();

    const int query = first + i, own_key = first_key + part * kKeysPerThread;
    const bool is_query = query < head.queries;
    const int visible = is_query ? head.keys_of(query, shape) : 0;
    C delta = 0, log_sum = 0;
    if (is_query) {
      const T* y_row = t.y + query * shape.width;
      for (int c = part; c < w; c += kThreadsPerQuery) delta += dy[i * stride + c] * y_row[c];
      log_sum = t.lse[query * shape.heads];
    }
    delta = query_reduce(delta, Plus{});
    const Words words = mask_words(shape, head, query, own_key);
    const auto mask = [&](int j) {
      return mask_factor(shape, words.word[j], query & kDropoutQueries);
    };
    for (int j = 0; j < kKeysPerThread; ++j) {
      const int column = part * kKeysPerThread + j;
      C probability = 0, slope = 0;
      if (own_key + j < visible) {
        const C score =
            rounded_product(row_product(q + i * stride, k + column * stride, w), shape.scale);
        probability = exponential(score - log_sum);
        const C dp = row_product(dy + i * stride, v + column * stride, w) * mask(j);
        slope = probability * (dp - delta) * shape.scale;
      }
      p[i * kScoreStride + column] = probability * mask(j);
      ds[i * kScoreStride + column] = slope;
    }
    __syncthreads();

    for (int c = part; is_key && c < w; c += kThreadsPerQuery) {
      C sum_k = sums[0][c], sum_v = sums[1][c];
      for (int j = 0; j < kTileRows; ++j) {
        sum_k += ds[j * kScoreStride + i] * q[j * stride + c];
        sum_v += p[j * kScoreStride + i] * dy[j * stride + c];
      }
      sums[0][c] = sum_k;
      sums[1][c] = sum_v;
    }
    T* const dq = t.out.q + query * t.out.q_stride;
    C* dq_sum = nullptr;
    if constexpr (kSumsApart<T>)
      dq_sum = dq_sums + query * shape.width;
    else
      dq_sum = dq;
    const bool last = first_key + kTileRows >= visible;
    double squares = 0;
    for (int c = part; is_query && c < w; c += kThreadsPerQuery) {
      C sum = first_key == 0 ? C(0) : dq_sum[c];
      for (int j = 0; j < kTileRows; ++j) sum += ds[i * kScoreStride + j] * k[j * stride + c];
      if (last)
        dq[c] = static_cast<T>(sum);
      else
        dq_sum[c] = sum;
      squares += squared(sum);
    }
    if (!t.norm) continue;
    squares = query_reduce(squares, Plus{});
    if (is_query && last && part == 0)
      t.norm[query * shape.heads * 2] = norm_from_squares<C>(squares);
  }
  double squares = 0;
  for (int s = 0; is_key && s < 2; ++s)
    for (int c = part; c < w; c += kThreadsPerQuery) {
      const C sum = sums[s][c];
      if constexpr (kSumsApart<T>) out[s][c] = static_cast<T>(sum);
      squares += squared(sum);
    }
  if (!t.norm) return;
  squares = query_reduce(squares, Plus{});
  if (is_key && part == 0) t.norm[key * shape.heads * 2 + 1] = norm_from_squares<C>(squares);
}

// Blocks (1, head, item). dq_sums is [rows of dy, width] where sums are apart, else null.
template <class T>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_backward_kernel(BackwardTensors<T> t, Compute<T>* dq_sums, HeadShape<T> shape) {
  const auto [head, gradients] = backward_work(t, shape);
  if constexpr (kSumsApart<T>)
    dq_sums += gradients.dy_row * shape.width + blockIdx.y * shape.head_width;
  for (int first = 0; first < head.tokens; first += kTileRows)
    backward_tile(gradients, dq_sums, head, first, shape);
}

// ---- host ----

// `tiles`, `scores` and `sums` say what shared memory holds. Throws Error(kBadConfig) where the
// device has less.
template <class T>
Grid attention_grid(const Context& context, std::int64_t rows, std::int64_t items,
                    std::int64_t tile_rows, const HeadShape<T>& shape, std::int64_t tiles,
                    std::int64_t scores, std::int64_t sums) {
  const std::int64_t wide =
      scores * kScoreStride + (kSumsApart<T> ? sums * shape.tile_stride() : 0);
  const std::size_t bytes =
      kTileRows * (static_cast<std::size_t>(wide) * sizeof(Compute<T>) +
                   static_cast<std::size_t>(tiles * shape.tile_stride()) * sizeof(T));
  check_shared(context, bytes, "attention heads of width " + std::to_string(shape.head_width),
               "give the model more heads (model.heads), which are narrower, or train it on "
               "device=\"cpu\"");
  return grid_of_heads(rows, items, shape.heads, tile_rows, kAttentionThreads, bytes);
}

void compute(Context& context, const AttentionForward& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const HeadShape<T> shape =
        head_shape<T>(args.y.width(), args.heads, args.dropout, args.causal, step_key(args));
    if constexpr (!std::is_same_v<T, double>)
      if (attention_forward_mma(context, args, shape)) return;
    launch(context,
           attention_grid(context, args.y.rows(), args.offsets.elements() - 1, kTileRows, shape, 3,
                          1, 1),
           attention_forward_kernel<T>, args.y.ptr<T>(), args.y_norm.ptr<Compute<T>>(),
           args.lse.ptr<Compute<T>>(), args.query.ptr<T>(), args.qkv.ptr<T>(),
           args.offsets.ptr<std::int64_t>(), shape);
  });
}

void compute(Context& context, const AttentionBackward& args) {
  with_type(args.dqkv.dtype, [&](auto type) {
    using T = decltype(type);
    const HeadShape<T> shape =
        head_shape<T>(args.dy.width(), args.heads, args.dropout, args.causal, step_key(args));
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
    const std::int64_t rows = args.dqkv.rows();
    Compute<T>* dq_sums = nullptr;
    if constexpr (kSumsApart<T>) dq_sums = scratch<Compute<T>>(context, args.dy.elements());
    launch(context, attention_grid(context, rows, items, rows, shape, 4, 2, 2),
           attention_backward_kernel<T>, tensors, dq_sums, shape);
  });
}

}  // namespace vcas::VCAS_DEVICE
