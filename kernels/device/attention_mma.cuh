// Attention on tensor cores: products of bf16 or, of f32, of TF32; sums, scores and probabilities
// in f32. A block has 64 queries or keys of one head of one item, a warp 16 of them, and goes over
// the keys or queries of the item, whose rows are copied into shared memory one tile ahead. The
// probabilities of a warp never leave its registers: as sums of one product they lie as the next
// one takes its factor a, rounded.
#pragma once

#include <initializer_list>

#include "kernels/device/attention.cuh"
#include "kernels/device/math.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/device/reduce.cuh"

namespace vcas::VCAS_DEVICE {

constexpr int kSquare = 16;
constexpr int kOwnRows = 64;  // of a block
constexpr int kMmaThreads = kOwnRows / kSquare * kWarp;
template <class T>
constexpr int kMostHeadWidth = std::is_same_v<T, bfloat16> ? 128 : 64;

// 16 x 16 sums of a warp, of two mma side by side: lane 4g + t has entry (8h + g, 8f + 2t + e) as
// [f][2h + e].
using Square = float[2][4];

// Row 8f + 2t + e of every 16 rows of a tile holds row 4t + 2f + e of the 16 that it is made from.
// So the columns that a lane has of a square are four neighbouring keys, which share a Philox draw.
__device__ inline int source_row(int row) {
  return row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2;
}

// 16 x 16 numbers as factor a or b of mma: of TF32 eight columns of a, or rows of b, after eight.
template <class T>
using Factor = std::uint32_t[2 * sizeof(T)];

// One head's columns of the rows of an item.
template <class T>
struct HeadRows {
  const T* data;
  std::int64_t stride, rows;
};

// Rows are a chunk longer than kWidth numbers, so that loads of factors meet in no bank.
template <class T, int kWidth, int kRows>
struct HeadTile {
  static constexpr bool kBf16 = std::is_same_v<T, bfloat16>;
  static constexpr int kSize = Chunk<T>::kSize, kChunks = kWidth / kSize;
  Chunk<T> value[kRows][kChunks + 1];

  // Starts to copy the rows from `first` on; zeros beyond the last and beyond the head's width.
  __device__ void start_copy(const HeadRows<T>& from, std::int64_t first, std::int64_t head_width) {
    const int chunk = static_cast<int>(threadIdx.x) % kChunks;
    for (int r = static_cast<int>(threadIdx.x) / kChunks; r < kRows; r += kMmaThreads / kChunks) {
      const std::int64_t row = first + source_row(r);
      const bool inside = row < from.rows && chunk * kSize < head_width;
      const T* data = from.data + (inside ? row * from.stride + chunk * kSize : 0);
      copy_async(&value[r][chunk], reinterpret_cast<const Chunk<T>*>(data), inside);
    }
  }

  // Loads of the 16 x 16 numbers from (row, 16 column) on: as factor a; as two factors b, of eight
  // of their columns each, to be multiplied with a rounded square; as the like of them transposed,
  // of eight of their rows each.
  __device__ void load_a(Factor<T>& a, int row, int column) const {
    if constexpr (kBf16)
      load_blocks(a, downwards(row, column));
    else
      for (int i = 0; i < 8; ++i)
        a[i] = to_tf32(number(row + i % 2 * 8 + group(), 16 * column + i / 2 * 4 + lane_of_four()));
  }
  __device__ void load_b(Factor<T>& b, int row, int column) const {
    if constexpr (kBf16)
      load_blocks_transposed(b, downwards(row, column));
    else
      for (int i = 0; i < 8; ++i)
        b[i] = to_tf32(number(row + i / 4 * 8 + 2 * lane_of_four() + i % 2,
                              16 * column + i / 2 % 2 * 8 + group()));
  }
  __device__ void load_b_transposed(Factor<T>& b, int row, int column) const {
    if constexpr (kBf16) {
      const int block = lane_of_thread() / 8;
      load_blocks(b, &value[row + block / 2 * 8 + lane_of_thread() % 8][2 * column + block % 2]);
    } else {
      for (int i = 0; i < 8; ++i)
        b[i] = to_tf32(number(row + i / 2 % 2 * 8 + group(),
                              16 * column + i / 4 * 8 + i % 2 * 4 + lane_of_four()));
    }
  }

  // The lane's share of the products of rows `row` + 8h + g with those of `other`.
  __device__ void add_row_products(float (&sum)[2], const HeadTile& other, int row) const {
    for (int column = 0; column < kWidth / kSquare; ++column)
      if constexpr (kBf16) {
        std::uint32_t a[4], b[4];
        load_a(a, row, column);
        other.load_a(b, row, column);
        for (int i = 0; i < 4; ++i)
          sum[i % 2] += low_bf16(a[i]) * low_bf16(b[i]) + high_bf16(a[i]) * high_bf16(b[i]);
      } else {
        for (int i = 0; i < 8; ++i) {
          const int r = row + i % 2 * 8 + group(), c = 16 * column + i / 2 * 4 + lane_of_four();
          sum[i % 2] += number(r, c) * other.number(r, c);
        }
      }
  }

 private:
  __device__ static int group() { return lane_of_thread() / 4; }
  __device__ static int lane_of_four() { return lane_of_thread() % 4; }
  __device__ T number(int row, int column) const {
    return value[row][column / kSize].value[column % kSize];
  }
  // The row that the lane names of the blocks of 8 x 8, the second of which lies below the first.
  __device__ const Chunk<T>* downwards(int row, int column) const {
    const int block = lane_of_thread() / 8;
    return &value[row + block % 2 * 8 + lane_of_thread() % 8][2 * column + block / 2];
  }
};

// sum += a b, with the two factors b of a load.
__device__ inline void add_product(Square& sum, const std::uint32_t (&a)[4],
                                   const std::uint32_t (&b)[4]) {
  const std::uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
  mma_bf16(sum[0], a, left);
  mma_bf16(sum[1], a, right);
}
__device__ inline void add_product(Square& sum, const std::uint32_t (&a)[8],
                                   const std::uint32_t (&b)[8]) {
  for (int k = 0; k < 8; k += 4) {
    const std::uint32_t a_part[4] = {a[k], a[k + 1], a[k + 2], a[k + 3]};
    const std::uint32_t left[2] = {b[k], b[k + 1]}, right[2] = {b[k + 2], b[k + 3]};
    mma_tf32(sum[0], a_part, left);
    mma_tf32(sum[1], a_part, right);
  }
}

// A square as factor a. Of TF32 a lane has two neighbouring columns where mma takes t and t + 4:
// the rows of its factor b change places likewise (`load_b`).
__device__ inline void round_square(std::uint32_t (&a)[4], const Square& square) {
  for (int i = 0; i < 4; ++i)
    a[i] = to_bf16_pair(square[i / 2][i % 2 * 2], square[i / 2][i % 2 * 2 + 1]);
}
__device__ inline void round_square(std::uint32_t (&a)[8], const Square& square) {
  for (int i = 0; i < 8; ++i) a[i] = to_tf32(square[i / 4][i % 2 * 2 + i / 2 % 2]);
}

// Reduces over the four lanes of a row.
template <class T, class Op>
__device__ T row_reduce(T value, const Op& op) {
  for (int distance = 2; distance > 0; distance /= 2)
    value = op(value, __shfl_xor_sync(kAllLanes, value, distance));
  return value;
}

// The dropout factors of a square that begins at (first_row, first_column) of the item.
template <bool kOfKeys, class T>
__device__ void square_mask(Square& factor, const HeadShape<T>& shape, const Head<T>& head,
                            std::int64_t first_row, std::int64_t first_column) {
  const int g = lane_of_thread() / 4, t = lane_of_thread() % 4;
  if constexpr (kOfKeys) {
    // Of four neighbouring keys a lane has two, of four queries; the lane of the next or last g has
    // the other two. Each draws for two of the queries.
    const bool odd = g % 2;
    for (int f = 0; f < 2; ++f) {
      const Mask<T> mask(shape, head, first_column + 4 * t + 2 * f + odd, first_row + g / 2 * 4);
      for (int h = 0; h < 2; ++h) {
        const float even_key = mask.factor[2 * h], odd_key = mask.factor[2 * h + 1];
        const float own = odd ? odd_key : even_key;
        const float drawn_there = __shfl_xor_sync(kAllLanes, odd ? even_key : odd_key, 4);
        factor[f][2 * h] = odd ? drawn_there : own;
        factor[f][2 * h + 1] = odd ? own : drawn_there;
      }
    }
  } else {
    for (int h = 0; h < 2; ++h) {
      const Mask<T> mask(shape, head, first_row + source_row(8 * h + g), first_column + 4 * t);
      for (int f = 0; f < 2; ++f)
        for (int e = 0; e < 2; ++e) factor[f][2 * h + e] = mask.factor[2 * f + e];
    }
  }
}

// to[0 .. head_width) = factor * row 8h + g of the squares; the lanes of a row together.
template <class T, int kSquares>
__device__ void store_row(T* to, const Square (&square)[kSquares], int h, float factor,
                          std::int64_t head_width) {
  struct alignas(2 * sizeof(T)) Pair {
    T value[2];
  };
  for (int c = 0; c < kSquares; ++c)
    if (c * kSquare < head_width)
      for (int f = 0; f < 2; ++f) {
        const float* own = &square[c][f][2 * h];
        Pair pair;
        if constexpr (std::is_same_v<T, bfloat16>) {
          const std::uint32_t bits = to_bf16_pair(own[0] * factor, own[1] * factor);
          memcpy(&pair, &bits, sizeof pair);
        } else {
          for (int e = 0; e < 2; ++e) pair.value[e] = own[e] * factor;
        }
        *reinterpret_cast<Pair*>(to + c * kSquare + 8 * f + lane_of_thread() % 4 * 2) = pair;
      }
}

// The sum of the squares of row 8h + g, in each of its lanes.
template <int kSquares>
__device__ double row_squares(const Square (&square)[kSquares], int h) {
  double sum = 0;
  VCAS_UNROLL
  for (int c = 0; c < kSquares; ++c)
    for (int i = 0; i < 4; ++i) sum += squared(square[c][i / 2][2 * h + i % 2]);
  return row_reduce(sum, Plus{});
}

template <class T, int kWidth>
struct ForwardTiles {
  static constexpr int kKeys = sizeof(T) == 2 ? 64 : 16;
  HeadTile<T, kWidth, kOwnRows> q;
  struct {
    HeadTile<T, kWidth, kKeys> k, v;
  } stage[2];
};

// A tile of queries going over the keys: softmax with a running maximum.
template <class T, int kWidth>
__device__ void attend_tile_mma(T* y, float* y_norm, float* lse, const Head<T>& head,
                                std::int64_t y_row, std::int64_t first_query,
                                const HeadShape<T>& shape) {
  using Tiles = ForwardTiles<T, kWidth>;
  constexpr int kKeys = Tiles::kKeys, kSquares = kKeys / kSquare, kColumns = kWidth / kSquare;
  VCAS_DYNAMIC_SHARED(Tiles, tiles);
  const HeadRows<T> k{head.in.k, head.in.kv_stride, head.tokens};
  const HeadRows<T> v{head.in.v, head.in.kv_stride, head.tokens};
  const int g = lane_of_thread() / 4, t = lane_of_thread() % 4;
  const int own_row = warp_of_thread() * kSquare;
  const auto start_stage = [&](std::int64_t first_key) {
    auto& stage = tiles->stage[first_key / kKeys % 2];
    stage.k.start_copy(k, first_key, shape.head_width);
    stage.v.start_copy(v, first_key, shape.head_width);
    copy_async_commit();
  };

  __syncthreads();  // the last tile of queries is done with
  tiles->q.start_copy({head.in.q, head.in.q_stride, head.queries}, first_query, shape.head_width);
  start_stage(0);
  Square sums[kColumns] = {};
  float largest[2] = {-infinity<float>(), -infinity<float>()}, sum[2] = {};  // the lane's share
  for (std::int64_t first_key = 0; first_key < head.tokens; first_key += kKeys) {
    copy_async_wait<0>();
    __syncthreads();  // this stage is there, and the other one has been used
    if (first_key + kKeys < head.tokens) start_stage(first_key + kKeys);
    if (first_query + own_row >= head.queries) continue;
    const auto& stage = tiles->stage[first_key / kKeys % 2];

    Square p[kSquares] = {};
    for (int c = 0; c < kColumns; ++c) {
      Factor<T> a, b;
      tiles->q.load_a(a, own_row, c);
      for (int s = 0; s < kSquares; ++s) {
        stage.k.load_b_transposed(b, s * kSquare, c);
        add_product(p[s], a, b);
      }
    }
    float shrink[2];
    for (int h = 0; h < 2; ++h) {
      float new_largest = largest[h];
      for (int s = 0; s < kSquares; ++s)
        for (int i = 0; i < 4; ++i) {
          float& score = p[s][i / 2][2 * h + i % 2];
          score = first_key + s * kSquare + 4 * t + i < head.tokens ? score * shape.scale
                                                                    : -infinity<float>();
          new_largest = Maximum{}(new_largest, score);
        }
      new_largest = row_reduce(new_largest, Maximum{});
      shrink[h] = exponential(largest[h] - new_largest);
      largest[h] = new_largest;
      sum[h] *= shrink[h];
    }
    for (auto& square : sums)
      for (auto& fragment : square)
        for (int i = 0; i < 4; ++i) fragment[i] *= shrink[i / 2];
    VCAS_UNROLL
    for (int s = 0; s < kSquares; ++s) {
      Square factor;
      square_mask<false>(factor, shape, head, first_query + own_row, first_key + s * kSquare);
      for (int f = 0; f < 2; ++f)
        for (int i = 0; i < 4; ++i) {
          const float e = exponential(p[s][f][i] - largest[i / 2]);
          sum[i / 2] += e;
          p[s][f][i] = e * factor[f][i];
        }
      Factor<T> a;
      round_square(a, p[s]);
      for (int c = 0; c < kColumns; ++c) {
        Factor<T> b;
        stage.v.load_b(b, s * kSquare, c);
        add_product(sums[c], a, b);
      }
    }
  }

  for (int h = 0; h < 2; ++h) {
    const float total = row_reduce(sum[h], Plus{});
    const double squares = y_norm ? row_squares(sums, h) : 0;
    const std::int64_t query = first_query + own_row + source_row(8 * h + g);
    if (query >= head.queries) continue;
    const std::int64_t row = y_row + query;
    store_row(y + row * shape.width + blockIdx.y * shape.head_width, sums, h, 1 / total,
              shape.head_width);
    if (t != 0) continue;
    const std::int64_t own = row * shape.heads + blockIdx.y;
    lse[own] = largest[h] + natural_log(total);
    if (y_norm) y_norm[own] = norm_from_squares<float>(squares) / total;
  }
}

// As `attention_forward_kernel`, for heads of up to kWidth numbers, a multiple of 16, whose rows
// lie on chunks.
template <class T, int kWidth>
__global__ void __launch_bounds__(kMmaThreads)
    attention_forward_mma_kernel(T* y, float* y_norm, float* lse, const T* query, const T* qkv,
                                 const std::int64_t* offsets, HeadShape<T> shape) {
  const std::int64_t n = blockIdx.z, first_row = offsets[n];
  const Head<T> head(query, qkv, n, first_row, offsets[n + 1] - first_row, shape);
  for (std::int64_t tile = blockIdx.x; tile * kOwnRows < head.queries; tile += gridDim.x)
    attend_tile_mma<T, kWidth>(y, y_norm, lse, head, query ? n : first_row, tile * kOwnRows, shape);
}

template <class T, int kWidth, bool kOfKeys>
struct BackwardTiles {
  static constexpr int kRows = 64 / sizeof(T);
  HeadTile<T, kWidth, kOwnRows> own[kOfKeys ? 2 : 3];  // k and v; or q, dy and y
  struct {
    HeadTile<T, kWidth, kRows> rows[2];  // q and dy; or k and v
    float lse[kRows], delta[kRows];      // of the queries, with kOfKeys
  } stage[2];
};

// `backward_tile` with P, dP and dS as [key, query] with kOfKeys, else [query, key]: then either is
// factor a of the products with a stage's rows. delta is that of the item's first query: a tile of
// queries writes what tiles of keys read.
template <class T, int kWidth, bool kOfKeys>
__device__ void backward_tile_mma(const HeadGradients<T>& t, float* delta, const Head<T>& head,
                                  std::int64_t own_first, const HeadShape<T>& shape) {
  using Tiles = BackwardTiles<T, kWidth, kOfKeys>;
  constexpr int kRows = Tiles::kRows, kColumns = kWidth / kSquare;
  constexpr int kSums = kOfKeys ? 2 : 1;  // dK and dV, or dQ
  VCAS_DYNAMIC_SHARED(Tiles, tiles);
  const HeadRows<T> q{head.in.q, head.in.q_stride, head.queries},
      dy{t.dy, shape.width, head.queries};
  const HeadRows<T> k{head.in.k, head.in.kv_stride, head.tokens};
  const HeadRows<T> v{head.in.v, head.in.kv_stride, head.tokens};
  const int g = lane_of_thread() / 4, lane_t = lane_of_thread() % 4;
  const int own_row = warp_of_thread() * kSquare;
  const std::int64_t own_rows = kOfKeys ? head.tokens : head.queries;
  const std::int64_t rows = kOfKeys ? head.queries : head.tokens;
  const auto start_stage = [&](std::int64_t first) {
    auto& stage = tiles->stage[first / kRows % 2];
    stage.rows[0].start_copy(kOfKeys ? q : k, first, shape.head_width);
    stage.rows[1].start_copy(kOfKeys ? dy : v, first, shape.head_width);
    const int own = static_cast<int>(threadIdx.x);
    if (kOfKeys && own < kRows) {
      const std::int64_t query = first + source_row(own);
      const bool inside = query < head.queries;
      copy_async(&stage.lse[own], t.lse + (inside ? query * shape.heads : 0), inside);
      copy_async(&stage.delta[own], delta + (inside ? query * shape.heads : 0), inside);
    }
    copy_async_commit();
  };

  __syncthreads();  // the last tile is done with
  tiles->own[0].start_copy(kOfKeys ? k : q, own_first, shape.head_width);
  tiles->own[1].start_copy(kOfKeys ? v : dy, own_first, shape.head_width);
  if constexpr (!kOfKeys)
    tiles->own[2].start_copy({t.y, shape.width, head.queries}, own_first, shape.head_width);
  start_stage(0);
  float own_lse[2] = {}, own_delta[2] = {};
  Square sums[kSums][kColumns] = {};
  for (std::int64_t first = 0; first < rows; first += kRows) {
    copy_async_wait<0>();
    __syncthreads();  // this stage is there, and the other one has been used
    if (first + kRows < rows) start_stage(first + kRows);
    if (own_first + own_row >= own_rows) continue;
    const auto& stage = tiles->stage[first / kRows % 2];
    if constexpr (!kOfKeys)
      if (first == 0) {
        tiles->own[1].add_row_products(own_delta, tiles->own[2], own_row);
        for (int h = 0; h < 2; ++h) {
          own_delta[h] = row_reduce(own_delta[h], Plus{});
          const std::int64_t query = own_first + own_row + source_row(8 * h + g);
          if (query < head.queries) own_lse[h] = t.lse[query * shape.heads];
          if (query < head.queries && lane_t == 0) delta[query * shape.heads] = own_delta[h];
        }
      }

    for (int row = 0; row < kRows; row += kSquare) {
      Square p = {}, ds = {};
      Factor<T> a, b;
      for (int c = 0; c < kColumns; ++c) {
        tiles->own[0].load_a(a, own_row, c);
        stage.rows[0].load_b_transposed(b, row, c);
        add_product(p, a, b);
        tiles->own[1].load_a(a, own_row, c);
        stage.rows[1].load_b_transposed(b, row, c);
        add_product(ds, a, b);
      }
      Square factor;
      square_mask<kOfKeys>(factor, shape, head, own_first + own_row, first + row);
      for (int f = 0; f < 2; ++f)
        for (int i = 0; i < 4; ++i) {
          const int column = row + 8 * f + 2 * lane_t + i % 2;
          const float log_sum = kOfKeys ? stage.lse[column] : own_lse[i / 2];
          const float own_sum = kOfKeys ? stage.delta[column] : own_delta[i / 2];
          // Queries beyond the last are zeros and add nothing, and sums of keys beyond it are not
          // stored; but as columns such keys would have probabilities.
          const bool inside = kOfKeys || first + source_row(column) < head.tokens;
          const float probability = inside ? exponential(p[f][i] * shape.scale - log_sum) : 0.0f;
          p[f][i] = probability * factor[f][i];
          ds[f][i] = probability * (ds[f][i] * factor[f][i] - own_sum) * shape.scale;
        }
      round_square(a, ds);
      for (int c = 0; c < kColumns; ++c) {
        stage.rows[0].load_b(b, row, c);
        add_product(sums[0][c], a, b);
      }
      if (!kOfKeys) continue;
      round_square(a, p);
      for (int c = 0; c < kColumns; ++c) {
        stage.rows[1].load_b(b, row, c);
        add_product(sums[kSums - 1][c], a, b);
      }
    }
  }

  VCAS_UNROLL  // or the sums would not stay in registers
      for (int h = 0; h < 2; ++h) {
    const std::int64_t row = own_first + own_row + source_row(8 * h + g);
    double squares = 0;
    if (t.norm) {
      VCAS_UNROLL
      for (int s = 0; s < kSums; ++s) squares += row_squares(sums[s], h);
    }
    if (row >= own_rows) continue;
    if (t.norm && lane_t == 0)
      t.norm[row * shape.heads * 2 + kOfKeys] = norm_from_squares<float>(squares);
    if constexpr (kOfKeys) {
      store_row(t.out.k + row * t.out.kv_stride, sums[0], h, 1, shape.head_width);
      store_row(t.out.v + row * t.out.kv_stride, sums[1], h, 1, shape.head_width);
    } else {
      store_row(t.out.q + row * t.out.q_stride, sums[0], h, 1, shape.head_width);
    }
  }
}

// As `attention_backward_kernel`; delta is f32 [rows of dy, heads].
template <class T, int kWidth, bool kOfKeys>
__global__ void __launch_bounds__(kMmaThreads, kWidth * sizeof(T) <= 128 ? 3 : 2)
    attention_backward_mma_kernel(BackwardTensors<T> t, float* delta, HeadShape<T> shape) {
  const auto [head, gradients] = backward_work(t, shape);
  const std::int64_t rows = kOfKeys ? head.tokens : head.queries;
  for (std::int64_t tile = blockIdx.x; tile * kOwnRows < rows; tile += gridDim.x)
    backward_tile_mma<T, kWidth, kOfKeys>(gradients,
                                          delta + gradients.dy_row * shape.heads + blockIdx.y, head,
                                          tile * kOwnRows, shape);
}

// ---- host ----

template <class T>
bool on_tensor_cores(const Context& context, const HeadShape<T>& shape,
                     std::initializer_list<const Tensor*> tensors) {
  if (std::is_same_v<T, float> && context.precision() != Precision::kTf32) return false;
  for (const Tensor* tensor : tensors)
    if (!lies_on_chunk(tensor->data)) return false;
  return shape.head_width % kSquare == 0 && shape.head_width <= kMostHeadWidth<T>;
}

// f(the width of tiles)
template <class T, class F>
void with_tile_width(const HeadShape<T>& shape, const F& f) {
  if constexpr ((kMostHeadWidth<T>) > 64)
    if (shape.head_width > 64) return f(Constant<128>{});
  f(Constant<64>{});
}

// Whether they have done it.
template <class T>
bool attention_forward_mma(Context& context, const AttentionForward& args,
                           const HeadShape<T>& shape) {
  if (!on_tensor_cores(context, shape, {&args.y, &args.query, &args.qkv})) return false;
  const auto run = [&]<int kWidth>(Constant<kWidth>) {
    launch(context,
           grid_of_heads(args.y.rows(), args.offsets.elements() - 1, shape.heads, kOwnRows,
                         kMmaThreads, sizeof(ForwardTiles<T, kWidth>)),
           attention_forward_mma_kernel<T, kWidth>, args.y.ptr<T>(), args.y_norm.ptr<float>(),
           args.lse.ptr<float>(), args.query.ptr<T>(), args.qkv.ptr<T>(),
           args.offsets.ptr<std::int64_t>(), shape);
  };
  with_tile_width(shape, run);
  return true;
}

template <class T>
bool attention_backward_mma(Context& context, const AttentionBackward& args,
                            const BackwardTensors<T>& tensors, const HeadShape<T>& shape) {
  if (!on_tensor_cores(
          context, shape,
          {&args.dquery, &args.dqkv, &args.dy, &args.query_full, &args.qkv_full, &args.y_full}))
    return false;
  auto* const delta = scratch<float>(context, args.dy.rows() * shape.heads);
  const auto run = [&]<int kWidth, bool kOfKeys>() {
    launch(context,
           grid_of_heads(kOfKeys ? args.dqkv.rows() : args.dy.rows(), args.offsets.elements() - 1,
                         shape.heads, kOwnRows, kMmaThreads,
                         sizeof(BackwardTiles<T, kWidth, kOfKeys>)),
           attention_backward_mma_kernel<T, kWidth, kOfKeys>, tensors, delta, shape);
  };
  with_tile_width(shape, [&]<int kWidth>(Constant<kWidth>) {
    run.template operator()<kWidth, false>();
    run.template operator()<kWidth, true>();
  });
  return true;
}

}  // namespace vcas::VCAS_DEVICE
