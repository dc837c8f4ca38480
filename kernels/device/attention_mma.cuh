// Attention on tensor cores: the forward, and what the backward shares with it. Products take bf16,
// or f32 rounded to TF32. Sums, scores and probabilities are f32.
//
// A block has 64 queries of one head of one item at a time, a warp 16 of them. It goes over tiles
// of the item's keys, which are copied into shared memory one tile ahead. The probabilities of a
// warp never leave its registers. They lie there as sums of one product, and rounded they are
// factor a of the next.
#pragma once

#include <initializer_list>

#include "kernels/device/attention.cuh"
#include "kernels/device/chunks.cuh"
#include "kernels/device/math.cuh"
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

// Row 8f + 2t + e of every 16 rows of a tile of keys holds row 4t + 2f + e of the 16 that it is
// made from. So the columns that a lane has of a square are four neighbouring keys, which share a
// Philox draw. The two rows that it has are queries that share its words.
__device__ inline int source_row(int row) {
  return row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2;
}

// 16 x 16 numbers as factor a or b of mma: of TF32 eight columns of a, or rows of b, after eight.
template <class T>
using Fragment = std::uint32_t[2 * sizeof(T)];

constexpr float kLog2E = 1.44269504f;

// One head's columns of the rows of an item, from the chunk on that the running thread copies:
// always the same one of a row.
template <class T, int kWidth>
struct HeadRows {
  static constexpr int kChunks = kWidth / Chunk<T>::kSize;
  const T* data;
  int stride, rows;  // no rows where the chunk lies beyond the head

  __device__ HeadRows(const T* data_, std::int64_t stride_, int rows_, int head_width)
      : stride(static_cast<int>(stride_)) {
    const int column = static_cast<int>(threadIdx.x) % kChunks * Chunk<T>::kSize;
    data = data_ + (column < head_width ? column : 0);
    rows = column < head_width ? rows_ : 0;
  }
};

// to[0], to[1], which lie as a pair
template <class T>
__device__ void store_pair(T* to, float first, float second) {
  struct alignas(2 * sizeof(T)) Pair {
    T value[2];
  };
  Pair pair{{static_cast<T>(first), static_cast<T>(second)}};
  if constexpr (std::is_same_v<T, bfloat16>) {
    const std::uint32_t bits = to_bf16_pair(first, second);
    memcpy(&pair, &bits, sizeof pair);
  }
  *reinterpret_cast<Pair*>(to) = pair;
}

// Rows are a chunk longer than kWidth numbers, so that loads of factors meet in no bank.
// kOfKeys: rows lie as `source_row` says.
template <class T, int kWidth, int kRows, bool kOfKeys = false>
struct HeadTile {
  static constexpr bool kBf16 = std::is_same_v<T, bfloat16>;
  static constexpr int kSize = Chunk<T>::kSize, kChunks = kWidth / kSize;
  Chunk<T> value[kRows][kChunks + 1];

  // A block of kThreads starts to copy the rows from `first` on. Zeros come beyond the last row and
  // beyond the head's width.
  template <int kThreads>
  __device__ void start_copy(const HeadRows<T, kWidth>& from, int first) {
    const int chunk = static_cast<int>(threadIdx.x) % kChunks;
    VCAS_UNROLL
    for (int i = 0; i < kRows * kChunks; i += kThreads) {
      const int r = (i + static_cast<int>(threadIdx.x)) / kChunks;
      const int row = first + (kOfKeys ? source_row(r) : r);
      if (kRows * kChunks % kThreads != 0 && r >= kRows) break;
      const bool inside = row < from.rows;
      const T* const data = from.data + std::int64_t{inside ? row : 0} * from.stride;
      copy_async(&value[r][chunk], reinterpret_cast<const Chunk<T>*>(data), inside);
    }
  }

  // What a lane has of the sums from (row, 16 column) on.
  __device__ void store(const Square& square, int row, int column) {
    for (int f = 0; f < 2; ++f)
      for (int h = 0; h < 2; ++h) {
        const int c = 16 * column + 8 * f + 2 * lane_of_four();
        store_pair(&value[row + 8 * h + group()][c / kSize].value[c % kSize], square[f][2 * h],
                   square[f][2 * h + 1]);
      }
  }

  // Loads of the 16 x 16 numbers from (row, 16 column) on:
  //   load_a             as factor a, for load_b_transposed
  //   load_b             as two factors b, of 8 columns each, for a rounded square
  //   load_b_transposed  transposed, as two factors b, of 8 rows each, for load_a
  //   load_a_transposed  transposed, as factor a, for load_b
  __device__ void load_a(Fragment<T>& a, int row, int column) const {
    if constexpr (kBf16)
      load_blocks(a, downwards(row, column));
    else
      for (int i = 0; i < 8; ++i)
        a[i] = to_tf32(number(row + i % 2 * 8 + group(), 16 * column + i / 2 * 4 + lane_of_four()));
  }
  __device__ void load_b(Fragment<T>& b, int row, int column) const {
    if constexpr (kBf16)
      load_blocks_transposed(b, downwards(row, column));
    else
      for (int i = 0; i < 8; ++i)
        b[i] = to_tf32(number(row + i / 4 * 8 + 2 * lane_of_four() + i % 2,
                              16 * column + i / 2 % 2 * 8 + group()));
  }
  __device__ void load_b_transposed(Fragment<T>& b, int row, int column) const {
    if constexpr (kBf16)
      load_blocks(b, sideways(row, column));
    else
      for (int i = 0; i < 8; ++i)
        b[i] = to_tf32(number(row + i / 2 % 2 * 8 + group(),
                              16 * column + i / 4 * 8 + i % 2 * 4 + lane_of_four()));
  }
  __device__ void load_a_transposed(Fragment<T>& a, int row, int column) const {
    if constexpr (kBf16)
      load_blocks_transposed(a, sideways(row, column));
    else
      for (int i = 0; i < 8; ++i)
        a[i] = to_tf32(number(row + i / 4 * 8 + 2 * lane_of_four() + i / 2 % 2,
                              16 * column + i % 2 * 8 + group()));
  }

 private:
  __device__ static int group() { return lane_of_thread() / 4; }
  __device__ static int lane_of_four() { return lane_of_thread() % 4; }
  __device__ T number(int row, int column) const {
    return value[row][column / kSize].value[column % kSize];
  }
  // The row that the lane names for load_blocks, of the four blocks of 8 x 8. The second block lies
  // below the first (downwards) or beside it (sideways).
  __device__ const Chunk<T>* downwards(int row, int column) const {
    const int block = lane_of_thread() / 8;
    return &value[row + block % 2 * 8 + lane_of_thread() % 8][2 * column + block / 2];
  }
  __device__ const Chunk<T>* sideways(int row, int column) const {
    const int block = lane_of_thread() / 8;
    return &value[row + block / 2 * 8 + lane_of_thread() % 8][2 * column + block % 2];
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

// A square as factor a. In TF32 a lane has two neighbouring columns where mma takes t and t + 4:
// the rows of its factor b change places in the same way (`load_b`).
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

// Zeros where dropout drops entries of a square of [query, key]. Those kept are not scaled yet.
template <class T>
__device__ void drop(Square& square, const HeadShape<T>& shape, const Head<T>& head,
                     int first_query, int first_key) {
  if (!shape.threshold) return;
  const Words words = mask_words(shape, head, first_query + lane_of_thread() / 4,
                                 first_key + lane_of_thread() % 4 * 4);
  for (int f = 0; f < 2; ++f)
    for (int i = 0; i < 4; ++i)
      if (!dropout_keeps(words.word[2 * f + i % 2], i >= 2, shape.threshold)) square[f][i] = 0;
}

// to[0 .. head_width) = factor * row 8h + g of the squares; the lanes of a row together.
template <class T, int kSquares>
__device__ void store_row(T* to, const Square (&square)[kSquares], int h, float factor,
                          std::int64_t head_width) {
  for (int c = 0; c < kSquares; ++c)
    if (c * kSquare < head_width)
      for (int f = 0; f < 2; ++f)
        store_pair(to + c * kSquare + 8 * f + lane_of_thread() % 4 * 2,
                   square[c][f][2 * h] * factor, square[c][f][2 * h + 1] * factor);
}

// The sum of the squares of row 8h + g, in each of its lanes.
template <int kSquares>
__device__ double row_squares(const Square (&square)[kSquares], int h) {
  float own[4 * kSquares];
  VCAS_UNROLL
  for (int c = 0; c < kSquares; ++c)
    for (int i = 0; i < 4; ++i) own[4 * c + i] = square[c][i / 2][2 * h + i % 2];
  return row_reduce(sum_of_squares(own), Plus{});
}

template <class T, int kWidth>
struct ForwardTiles {
  static constexpr int kKeys = sizeof(T) == 2 ? 64 : 16;
  HeadTile<T, kWidth, kOwnRows> q;
  struct {
    HeadTile<T, kWidth, kKeys, true> k, v;
  } stage[2];
};

// A tile of queries going over the keys: softmax with a running maximum, of the scores before they
// are scaled.
template <class T, int kWidth>
__device__ void attend_tile_mma(T* y, float* y_norm, float* lse, const Head<T>& head,
                                std::int64_t y_row, int first_query, const HeadShape<T>& shape) {
  using Tiles = ForwardTiles<T, kWidth>;
  constexpr int kKeys = Tiles::kKeys, kSquares = kKeys / kSquare, kColumns = kWidth / kSquare;
  VCAS_DYNAMIC_SHARED(Tiles, tiles);
  using Rows = HeadRows<T, kWidth>;
  const Rows k(head.in.k, head.in.kv_stride, head.tokens, shape.head_width);
  const Rows v(head.in.v, head.in.kv_stride, head.tokens, shape.head_width);
  const int g = lane_of_thread() / 4, t = lane_of_thread() % 4;
  const int own_row = warp_of_thread() * kSquare;
  const auto start_stage = [&](int first_key) {
    auto& stage = tiles->stage[first_key / kKeys % 2];
    stage.k.template start_copy<kMmaThreads>(k, first_key);
    stage.v.template start_copy<kMmaThreads>(v, first_key);
    copy_async_commit();
  };

  __syncthreads();  // the last tile of queries is done with
  tiles->q.template start_copy<kMmaThreads>(
      Rows(head.in.q, head.in.q_stride, head.queries, shape.head_width), first_query);
  start_stage(0);
  Fragment<T> q[kColumns];
  Square sums[kColumns] = {};
  const float to_exponent = shape.scale * kLog2E;
  float largest[2] = {-infinity<float>(), -infinity<float>()}, sum[2] = {};  // the lane's share
  const int keys = head.keys_of(first_query + kOwnRows - 1, shape);
  for (int first_key = 0; first_key < keys; first_key += kKeys) {
    copy_async_wait<0>();
    __syncthreads();  // this stage is there, and the other one has been used
    if (first_key + kKeys < keys) start_stage(first_key + kKeys);
    if (first_query + own_row >= head.queries) continue;
    const auto& stage = tiles->stage[first_key / kKeys % 2];

    if (first_key == 0)
      for (int c = 0; c < kColumns; ++c) tiles->q.load_a(q[c], own_row, c);
    Square p[kSquares] = {};
    VCAS_UNROLL
    for (int c = 0; c < kColumns; ++c)
      for (int s = 0; s < kSquares; ++s) {
        Fragment<T> b;
        stage.k.load_b_transposed(b, s * kSquare, c);
        add_product(p[s], q[c], b);
      }
    float shrink[2];
    VCAS_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int visible = head.keys_of(first_query + own_row + 8 * h + g, shape);
      if (first_key + kKeys > visible)
        for (int s = 0; s < kSquares; ++s)
          for (int i = 0; i < 4; ++i)
            if (first_key + s * kSquare + 4 * t + i >= visible)
              p[s][i / 2][2 * h + i % 2] = -infinity<float>();
      float new_largest = largest[h];
      for (int s = 0; s < kSquares; ++s)
        for (int i = 0; i < 4; ++i)
          new_largest = Maximum{}(new_largest, p[s][i / 2][2 * h + i % 2]);
      new_largest = row_reduce(new_largest, Maximum{});
      shrink[h] = exp2_approximately((largest[h] - new_largest) * to_exponent);
      largest[h] = new_largest;
      sum[h] *= shrink[h];
    }
    for (auto& square : sums)
      for (auto& fragment : square)
        for (int i = 0; i < 4; ++i) fragment[i] *= shrink[i / 2];
    VCAS_UNROLL
    for (int s = 0; s < kSquares; ++s) {
      for (int f = 0; f < 2; ++f)
        for (int i = 0; i < 4; ++i) {
          const float e = exp2_approximately((p[s][f][i] - largest[i / 2]) * to_exponent);
          sum[i / 2] += e;
          p[s][f][i] = e;
        }
      drop(p[s], shape, head, first_query + own_row, first_key + s * kSquare);
      Fragment<T> a;
      round_square(a, p[s]);
      for (int c = 0; c < kColumns; ++c) {
        Fragment<T> b;
        stage.v.load_b(b, s * kSquare, c);
        add_product(sums[c], a, b);
      }
    }
  }

  for (int h = 0; h < 2; ++h) {
    const float total = row_reduce(sum[h], Plus{});
    const double squares = y_norm ? row_squares(sums, h) : 0;
    const float factor = shape.keep_scale / total;
    const int query = first_query + own_row + 8 * h + g;
    if (query >= head.queries) continue;
    const std::int64_t row = y_row + query;
    store_row(y + row * shape.width + blockIdx.y * shape.head_width, sums, h, factor,
              shape.head_width);
    if (t != 0) continue;
    const std::int64_t own = row * shape.heads + blockIdx.y;
    lse[own] = largest[h] * shape.scale + natural_log(total);
    if (y_norm) y_norm[own] = norm_from_squares<float>(squares) * factor;
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
  const int step = static_cast<int>(gridDim.x) * kOwnRows;
  for (int first = static_cast<int>(blockIdx.x) * kOwnRows; first < head.queries; first += step)
    attend_tile_mma<T, kWidth>(y, y_norm, lse, head, query ? n : first_row, first, shape);
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

}  // namespace vcas::VCAS_DEVICE
