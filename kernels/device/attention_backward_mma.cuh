// The backward of attention on tensor cores, in five products: Q K^T again, P^T dY, dY V^T, dS^T Q
// and dS K. A block has one head of one item. It goes over tiles of keys, and with each over tiles
// of queries. Queries are copied into shared memory one tile ahead.
#pragma once

#include "kernels/device/attention_mma.cuh"

namespace vcas::VCAS_DEVICE {

// What a query's probabilities and their slopes need, and a score of it does not.
struct QueryTerms {
  float lse, delta;
};

template <class T, int kWidth>
struct BackwardTiles {
  static constexpr int kKeys = kWidth * sizeof(T) <= 128 ? 128 : 64, kQueries = 64 / sizeof(T);
  static constexpr int kThreads = kKeys / kSquare * kWarp;
  HeadTile<T, kWidth, kKeys, true> k, v;
  struct {
    HeadTile<T, kWidth, kQueries> q, dy;
    QueryTerms terms[kQueries];
  } stage[2];
  HeadTile<T, kQueries, kKeys> ds;
};

// What the threads of a block work on.
template <class T>
struct BackwardPart {
  Head<T> head;
  HeadGradients<T> gradients;
  QueryTerms* terms;  // of the item's first query
  float* dq;          // sums over the tiles of keys, from there on
  std::int64_t dq_stride;
};

// done(row, sum) for each row below `rows`, of what of_lane(row, lane) gives its kLanes lanes.
template <int kLanes, class OfLane, class Done>
__device__ void for_each_row_sum(int rows, const OfLane& of_lane, const Done& done) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int step = static_cast<int>(blockDim.x) / kLanes;
  for (int first = 0; first < rows; first += step) {
    const int row = first + static_cast<int>(threadIdx.x) / kLanes;
    decltype(of_lane(row, lane)) sum = 0;
    if (row < rows) sum = of_lane(row, lane);
    for (int distance = kLanes / 2; distance > 0; distance /= 2)
      sum += __shfl_xor_sync(kAllLanes, sum, distance);
    if (row < rows && lane == 0) done(row, sum);
  }
}

// The words of the dropout masks of a square of [key, query]: word[2h + e] is that of the entries
// [f][2h + e]. A lane has two of the four neighbouring keys of a draw, for queries 2t and 2t + 1.
// Their words also serve the queries 8 further on (f = 1). The lane whose g differs in the lowest
// bit has the other two keys. Each of the two lanes draws for one of the queries, and they
// exchange words.
template <class T>
__device__ Words square_words(const HeadShape<T>& shape, const Head<T>& head, int first_key,
                              int first_query) {
  const int g = lane_of_thread() / 4, t = lane_of_thread() % 4;
  const bool odd = g % 2;
  const Words drawn = mask_words(shape, head, first_query + 2 * t + odd, first_key + g / 2 * 4);
  Words words;
  for (int h = 0; h < 2; ++h) {
    const std::uint32_t even_key = drawn.word[2 * h], odd_key = drawn.word[2 * h + 1];
    const std::uint32_t own = odd ? odd_key : even_key;
    const std::uint32_t drawn_there = __shfl_xor_sync(kAllLanes, odd ? even_key : odd_key, 4);
    words.word[2 * h] = odd ? drawn_there : own;
    words.word[2 * h + 1] = odd ? own : drawn_there;
  }
  return words;
}

// P M and dS as squares of [key, query]. The warp's 16 keys begin at `key`. The 16 queries begin at
// `query`, and lie in the stage from row `row` on. dS still lacks its factor `scale`, which dQ and
// dK get when they are stored.
template <class T, int kWidth, class Stage>
__device__ void slopes_of(Square& p, Square& ds, const BackwardTiles<T, kWidth>& tiles,
                          const Stage& stage, int row, int key, int query, const Head<T>& head,
                          const HeadShape<T>& shape) {
  const int g = lane_of_thread() / 4, t = lane_of_thread() % 4;
  const int own_row = warp_of_thread() * kSquare;
  VCAS_UNROLL
  for (int c = 0; c < kWidth / kSquare; ++c) {
    Fragment<T> a, b;
    tiles.k.load_a(a, own_row, c);
    stage.q.load_b_transposed(b, row, c);
    add_product(p, a, b);
    tiles.v.load_a(a, own_row, c);
    stage.dy.load_b_transposed(b, row, c);
    add_product(ds, a, b);
  }
  // Keys beyond the last are zeros, but such keys would have probabilities, perhaps infinite ones.
  if (key + kSquare > head.keys_of(query, shape))
    for (int f = 0; f < 2; ++f)
      for (int i = 0; i < 4; ++i)
        if (key + source_row(8 * (i / 2) + g) >= head.keys_of(query + 8 * f + 2 * t + i % 2, shape))
          p[f][i] = -infinity<float>();
  const Words words = square_words(shape, head, key, query);
  VCAS_UNROLL
  for (int f = 0; f < 2; ++f)
    for (int i = 0; i < 4; ++i) {
      const QueryTerms of = stage.terms[row + 8 * f + 2 * t + i % 2];
      const float score = rounded_product(p[f][i], shape.scale);
      const float probability = exp2_approximately((score - of.lse) * kLog2E);
      const float factor = mask_factor(shape, words.word[i], f == 1);
      p[f][i] = probability * factor;
      ds[f][i] = probability * (ds[f][i] * factor - of.delta);
    }
}

// Adds a tile of keys' share of dQ, for the tile of queries from `first` on. A warp has the same
// squares of dQ in every tile of keys. The last of these that a query attends to stores its dQ.
template <class T, int kWidth>
__device__ void add_dq(const BackwardPart<T>& of, const BackwardTiles<T, kWidth>& tiles,
                       int first_key, int first, const HeadShape<T>& shape) {
  using Tiles = BackwardTiles<T, kWidth>;
  constexpr int kColumns = kWidth / kSquare;
  const int g = lane_of_thread() / 4, t = lane_of_thread() % 4;
  for (int i = warp_of_thread(); i < Tiles::kQueries / kSquare * kColumns;
       i += Tiles::kThreads / kWarp) {
    const int row = i / kColumns * kSquare, column = i % kColumns * kSquare;
    if (first + row >= of.head.queries || column >= shape.head_width) continue;
    const int keys = of.head.keys_of(first + row + kSquare - 1, shape);
    Square dq[1] = {};
    for (int key = 0; key < min(Tiles::kKeys, keys - first_key); key += kSquare) {
      Fragment<T> a, b;
      tiles.ds.load_a_transposed(a, key, row / kSquare);
      tiles.k.load_b(b, key, column / kSquare);
      add_product(dq[0], a, b);
    }
    for (int h = 0; h < 2; ++h) {
      const int query = first + row + 8 * h + g;
      if (query >= of.head.queries) continue;
      float* const sums = of.dq + query * of.dq_stride + column;
      if (first_key > 0)
        for (int f = 0; f < 2; ++f)
          for (int e = 0; e < 2; ++e) dq[0][f][2 * h + e] += sums[8 * f + 2 * t + e];
      if (first_key + Tiles::kKeys < keys)
        store_row(sums, dq, h, 1, kSquare);
      else
        store_row(of.gradients.out.q + query * of.gradients.out.q_stride + column, dq, h,
                  shape.scale, kSquare);
    }
  }
}

// The tile of keys from `first_key` on.
template <class T, int kWidth>
__device__ void backward_tile_mma(const BackwardPart<T>& of, int first_key,
                                  const HeadShape<T>& shape) {
  using Tiles = BackwardTiles<T, kWidth>;
  constexpr int kQueries = Tiles::kQueries, kOfBlock = Tiles::kThreads;
  constexpr int kColumns = kWidth / kSquare;
  VCAS_DYNAMIC_SHARED(Tiles, tiles);
  using Rows = HeadRows<T, kWidth>;
  const Head<T>& head = of.head;
  const HeadGradients<T>& t = of.gradients;
  const Rows q(head.in.q, head.in.q_stride, head.queries, shape.head_width);
  const Rows dy(t.dy, shape.width, head.queries, shape.head_width);
  const int own_row = warp_of_thread() * kSquare, own_key = first_key + own_row;
  const auto start_stage = [&](int first) {
    auto& stage = tiles->stage[first / kQueries % 2];
    stage.q.template start_copy<kOfBlock>(q, first);
    stage.dy.template start_copy<kOfBlock>(dy, first);
    const int own = static_cast<int>(threadIdx.x);
    if (own < 2 * kQueries) {
      const int query = first + own / 2;
      const bool inside = query < head.queries;
      const auto* from = &of.terms[inside ? query * shape.heads : 0];
      copy_async((own % 2 ? &stage.terms[own / 2].delta : &stage.terms[own / 2].lse),
                 own % 2 ? &from->delta : &from->lse, inside);
    }
    copy_async_commit();
  };

  const int first_query = shape.causal ? first_key : 0;
  if (first_query < head.queries) {  // else none attends to these keys
    __syncthreads();                 // the last tile is done with
    tiles->k.template start_copy<kOfBlock>(
        Rows(head.in.k, head.in.kv_stride, head.tokens, shape.head_width), first_key);
    tiles->v.template start_copy<kOfBlock>(
        Rows(head.in.v, head.in.kv_stride, head.tokens, shape.head_width), first_key);
    start_stage(first_query);
  }
  Square dk[kColumns] = {}, dv[kColumns] = {};
  for (int first = first_query; first < head.queries; first += kQueries) {
    copy_async_wait<0>();
    __syncthreads();  // this stage is there; the other one, and dS, have been used
    if (first + kQueries < head.queries) start_stage(first + kQueries);
    const auto& stage = tiles->stage[first / kQueries % 2];
    for (int row = 0; row < kQueries && first + row < head.queries; row += kSquare) {
      if (own_key >= head.keys_of(first + row + kSquare - 1, shape)) continue;
      Square p = {}, ds = {};
      slopes_of(p, ds, *tiles, stage, row, own_key, first + row, head, shape);
      tiles->ds.store(ds, own_row, row / kSquare);
      Fragment<T> a, b;
      round_square(a, ds);
      for (int c = 0; c < kColumns; ++c) {
        stage.q.load_b(b, row, c);
        add_product(dk[c], a, b);
      }
      round_square(a, p);
      for (int c = 0; c < kColumns; ++c) {
        stage.dy.load_b(b, row, c);
        add_product(dv[c], a, b);
      }
    }
    __syncthreads();  // dS is complete
    add_dq(of, *tiles, first_key, first, shape);
  }

  VCAS_UNROLL  // or the sums would not stay in registers
      for (int h = 0; h < 2; ++h) {
    const int row = own_key + source_row(8 * h + lane_of_thread() / 4);
    double squares = 0;
    if (t.norm) squares = squared(shape.scale) * row_squares(dk, h) + row_squares(dv, h);
    if (row >= head.tokens) continue;
    if (t.norm && lane_of_thread() % 4 == 0)
      t.norm[row * shape.heads * 2 + 1] = norm_from_squares<float>(squares);
    store_row(t.out.k + row * t.out.kv_stride, dk, h, shape.scale, shape.head_width);
    store_row(t.out.v + row * t.out.kv_stride, dv, h, 1, shape.head_width);
  }
}

// As `attention_backward_kernel`. `terms` is [rows of dy, heads]; dq f32 [rows of dy, width], or
// null where dQ itself is f32.
template <class T, int kWidth>
__global__ void __launch_bounds__(BackwardTiles<T, kWidth>::kThreads, 2)
    attention_backward_mma_kernel(BackwardTensors<T> t, QueryTerms* terms, float* dq,
                                  HeadShape<T> shape) {
  constexpr int kSize = Chunk<T>::kSize;
  const BackwardWork<T> work = backward_work(t, shape);
  const auto& head = work.head;
  const auto& gradients = work.gradients;
  BackwardPart<T> of{head, gradients, terms + gradients.dy_row * shape.heads + blockIdx.y, dq,
                     shape.width};
  if constexpr (std::is_same_v<T, float>) {
    of.dq = gradients.out.q;
    of.dq_stride = gradients.out.q_stride;
  } else {
    of.dq += gradients.dy_row * shape.width + blockIdx.y * shape.head_width;
  }
  const auto chunk_of = [&](const T* row, int lane) { return load_chunk(row + lane * kSize); };
  for_each_row_sum<kWidth / kSize>(
      head.queries,
      [&](int row, int lane) {
        float sum = 0;
        if (lane * kSize >= shape.head_width) return sum;
        const auto dy = chunk_of(gradients.dy + row * shape.width, lane);
        const auto y = chunk_of(gradients.y + row * shape.width, lane);
        for (int i = 0; i < kSize; ++i) sum += dy.value[i] * y.value[i];
        return sum;
      },
      [&](int row, float delta) {
        of.terms[row * shape.heads] = {gradients.lse[row * shape.heads], delta};
      });
  for (int first_key = 0; first_key < head.tokens; first_key += BackwardTiles<T, kWidth>::kKeys)
    backward_tile_mma<T, kWidth>(of, first_key, shape);
  if (!gradients.norm) return;
  __syncthreads();  // dQ is complete
  for_each_row_sum<kWidth / kSize>(
      head.queries,
      [&](int row, int lane) {
        if (lane * kSize >= shape.head_width) return 0.0;
        const auto chunk = chunk_of(gradients.out.q + row * gradients.out.q_stride, lane);
        float value[kSize];
        for (int i = 0; i < kSize; ++i) value[i] = chunk.value[i];
        return sum_of_squares(value);
      },
      [&](int row, double squares) {
        gradients.norm[row * shape.heads * 2] = norm_from_squares<float>(squares);
      });
}

// ---- host ----

// Whether it has done it.
template <class T>
bool attention_backward_mma(Context& context, const AttentionBackward& args,
                            const BackwardTensors<T>& tensors, const HeadShape<T>& shape) {
  if (!on_tensor_cores(
          context, shape,
          {&args.dquery, &args.dqkv, &args.dy, &args.query_full, &args.qkv_full, &args.y_full}))
    return false;
  const std::int64_t rows = args.dy.rows();
  const std::int64_t sums = std::is_same_v<T, float> ? 0 : rows * shape.width;
  auto* const terms = scratch<QueryTerms>(
      context, rows * shape.heads + ceil_div(sums * sizeof(float), sizeof(QueryTerms)));
  auto* const dq = reinterpret_cast<float*>(terms + rows * shape.heads);
  with_tile_width(shape, [&]<int kWidth>(Constant<kWidth>) {
    using Tiles = BackwardTiles<T, kWidth>;
    launch(context,
           grid_of_heads(args.dqkv.rows(), args.offsets.elements() - 1, shape.heads,
                         args.dqkv.rows(), Tiles::kThreads, sizeof(Tiles)),
           attention_backward_mma_kernel<T, kWidth>, tensors, terms, dq, shape);
  });
  return true;
}

}  // namespace vcas::VCAS_DEVICE
