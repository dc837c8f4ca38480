// Products over gathered rows: c[i, j] (+)= sum over k of scale[k] a(k, i) b(k, j).
#pragma once

#include "kernels/device/mma.cuh"

namespace vcas::VCAS_DEVICE {

// One factor of a gathered product: entry (k, c) is data[row(k)][c].
template <class T>
struct Gathered {
  const T* data;
  std::int64_t stride;
  const std::int32_t* kept;  // k -> compact row, null: itself
  const std::int32_t* row;   // compact row -> row of data, null: itself
  std::int64_t width;        // how many c

  __device__ std::int64_t row_of(std::int64_t k) const { return at(row, at(kept, k)) * stride; }
};

// c[i, j] (+)= sum over k < depth of scale[k] a(k, i) b(k, j), k < count[0] where there is one
template <class T>
struct GatheredProduct {
  Compute<T>* c;
  Gathered<T> a, b;
  const Compute<T>* scale;  // null: all ones
  std::int64_t depth;
  const std::int32_t* count;  // null: of all `depth`
  bool accumulate;            // c += instead of c =
  std::int64_t first = 0;     // so many of `count` come before these

  __device__ std::int64_t rows() const {
    return count ? max(min(*count - first, depth), std::int64_t{0}) : depth;
  }

  // How many tiles of `tile` x `tile` entries c has, and how many side by side.
  __host__ __device__ int tiles_across(int tile) const {
    return static_cast<int>((b.width + tile - 1) / tile);
  }
  __host__ __device__ int tiles(int tile) const {
    return static_cast<int>((a.width + tile - 1) / tile) * tiles_across(tile);
  }
};

// The tile of a block, which begins at (i, j) of a product. Blocks go over the tiles of the first
// product, then of the next one.
template <class T>
struct TilePlace {
  const GatheredProduct<T>& product;
  std::int64_t i, j;
};
template <int kTile, class T>
__device__ TilePlace<T> tile_of_block(const Several<GatheredProduct<T>>& group) {
  int tile = static_cast<int>(blockIdx.x), n = 0;
  for (; tile >= group.each[n].tiles(kTile); ++n) tile -= group.each[n].tiles(kTile);
  const int across = group.each[n].tiles_across(kTile);
  return {group.each[n], std::int64_t{tile / across} * kTile, std::int64_t{tile % across} * kTile};
}

constexpr int kTile = 64, kDepth = 16, kPerThread = 4;
constexpr int kTileThreads = (kTile / kPerThread) * (kTile / kPerThread);

template <class T>
struct Panel {
  T value[kDepth][kTile];
};

// panel[k][c] = scale[k] * entry (first_k + k, first_c + c), zero outside.
template <class T>
__device__ void load_panel(Panel<Compute<T>>& panel, const Gathered<T>& from,
                           const Compute<T>* scale, std::int64_t first_k, std::int64_t count,
                           std::int64_t first_c) {
  for (int i = static_cast<int>(threadIdx.x); i < kDepth * kTile; i += kTileThreads) {
    const std::int64_t k = first_k + i / kTile, c = first_c + i % kTile;
    Compute<T> value = 0;
    if (k < count && c < from.width) {
      value = from.data[from.row_of(k) + c];
      if (scale) value *= scale[k];
    }
    panel.value[i / kTile][i % kTile] = value;
  }
}

// The products of a group: weight gradients of kept rows. Rows are gathered, and scaled, on their
// way into shared memory. A block owns a tile of 64 x 64 entries and goes over k from 0 on, 16 rows
// at a time, so every sum has one order; a thread owns 4 x 4.
template <class T>
__global__ void __launch_bounds__(kTileThreads)
    gathered_product_kernel(const __grid_constant__ Several<GatheredProduct<T>> group) {
  struct Shared {
    Panel<Compute<T>> a, b;
  };
  VCAS_SHARED(Shared, shared);
  const auto [product, first_i, first_j] = tile_of_block<kTile>(group);
  const auto& [c, a, b, scale, most, count, accumulate, before] = product;
  const std::int64_t depth = product.rows();
  const int own_i = static_cast<int>(threadIdx.x) / (kTile / kPerThread);
  const int own_j = static_cast<int>(threadIdx.x) % (kTile / kPerThread);
  Compute<T> sum[kPerThread][kPerThread] = {};
  for (std::int64_t k = 0; k < depth; k += kDepth) {
    load_panel(shared.a, a, scale, k, depth, first_i);
    load_panel<T>(shared.b, b, nullptr, k, depth, first_j);
    __syncthreads();
    for (int d = 0; d < kDepth; ++d)
      for (int i = 0; i < kPerThread; ++i)
        for (int j = 0; j < kPerThread; ++j)
          sum[i][j] += shared.a.value[d][own_i + i * (kTile / kPerThread)] *
                       shared.b.value[d][own_j + j * (kTile / kPerThread)];
    __syncthreads();
  }
  for (int i = 0; i < kPerThread; ++i)
    for (int j = 0; j < kPerThread; ++j) {
      const std::int64_t row = first_i + own_i + i * (kTile / kPerThread);
      const std::int64_t column = first_j + own_j + j * (kTile / kPerThread);
      if (row >= a.width || column >= b.width) continue;
      Compute<T>& out = c[row * b.width + column];
      out = accumulate ? out + sum[i][j] : sum[i][j];
    }
}

// ---- on tensor cores ----

// A block owns a tile of kTile x kTile entries, a warp of it kTile / 2 x 32. Rows come kRows at a
// time, kStages of them on their way.
template <class T, int kTile>
struct MmaTile {
  using Number = T;
  static constexpr int kRows = 64 / sizeof(T), kStages = 4, kColumns = 32;
  static constexpr int kChunks = kTile / Chunk<T>::kSize;
  static constexpr int kWarpsJ = kTile / kColumns;
  static constexpr int kThreads = 2 * kWarpsJ * kWarp;
  // Rows are longer than the tile: then no two lanes of a load meet in a bank.
  static constexpr int kPadding = sizeof(T) / 2;

  struct Stage {
    struct {
      Chunk<T> value[kRows][kChunks + kPadding];
    } panel[2];  // of a and b
    __device__ Chunk<T>& chunk(int factor, int k, int c) { return panel[factor].value[k][c]; }
  };
};

template <class Tile>
struct Stages {
  typename Tile::Stage stage[Tile::kStages];
  float scale[Tile::kStages][Tile::kRows];
  std::int32_t row[Tile::kStages][2][Tile::kRows];  // of data, -1: none; in turn, as the stages
  GatheredProduct<typename Tile::Number> product;   // the block's: here it takes no registers
};

template <int kTile, class Tile, class T>
__device__ TilePlace<T> tile_of_block(const Several<GatheredProduct<T>>& group,
                                      Stages<Tile>& shared) {
  const TilePlace<T> place = tile_of_block<kTile>(group);
  if (threadIdx.x == 0) {
    shared.product = place.product;
    shared.product.depth = place.product.rows();
  }
  __syncthreads();
  return {shared.product, place.i, place.j};
}

// A block's rows of both factors, as one of its threads brings them into shared memory.
//
// Copies of gathered rows run kStages - 1 stages ahead. Which rows those are is found one stage
// earlier still, by the first 2 kRows threads, one for each row of each factor, whose two reads, of
// which the second needs the first, are a stage apart.
template <class Tile>
class RowCopies {
  using T = typename Tile::Number;
  static constexpr int kRows = Tile::kRows, kStages = Tile::kStages, kChunks = Tile::kChunks;
  static constexpr int kLooking = 2 * kRows;

 public:
  __device__ RowCopies(Stages<Tile>& shared, const TilePlace<T>& tile)
      : shared_(shared),
        a_(tile.product.a),
        b_(tile.product.b),
        scale_(tile.product.scale),
        depth_(tile.product.depth),
        first_i_(tile.i),
        first_j_(tile.j) {
    if (!scale_)
      for (int k = thread_; k < kStages * kRows; k += Tile::kThreads)
        shared.scale[k / kRows][k % kRows] = 1;
    for (int own = thread_; own < kStages * kLooking; own += Tile::kThreads)
      shared.row[own / kLooking][own / kRows % 2][own % kRows] =
          row_of(index_of(own / kLooking, own), own);
    index_ = index_of(kStages, thread_);
    __syncthreads();
    for (int stage = 0; stage < kStages - 1; ++stage) start(stage);
  }

  __device__ int stages() const { return static_cast<int>((depth_ + kRows - 1) / kRows); }

  // Starts the copies of a stage.
  __device__ void start(int stage) {
    if (stage < stages()) {
      auto& to = shared_.stage[stage % kStages];
      const auto& rows = shared_.row[stage % kStages];
      for (int factor = 0; factor < 2; ++factor) {
        const Gathered<T>& from = factor == 0 ? a_ : b_;
        const int chunk = thread_ % kChunks;
        const std::int64_t column = (factor == 0 ? first_i_ : first_j_) + chunk * Chunk<T>::kSize;
        for (int k = thread_ / kChunks; k < kRows; k += Tile::kThreads / kChunks) {
          const std::int32_t row = rows[factor][k];
          const bool inside = row >= 0 && column < from.width;
          const T* data = from.data + (inside ? row * from.stride + column : 0);
          copy_async(&to.chunk(factor, k, chunk), reinterpret_cast<const Chunk<T>*>(data), inside);
        }
      }
      const std::int64_t k = first_k(stage) + thread_;
      if (scale_ && thread_ < kRows)
        copy_async(&shared_.scale[stage % kStages][thread_], scale_ + min(k, depth_ - 1),
                   k < depth_);
    }
    copy_async_commit();
  }

  // The row that this thread looks up for stage + kStages, to be kept when no thread copies `stage`
  // any more.
  __device__ std::int32_t look_up(int stage) {
    if (thread_ >= kLooking) return -1;
    const std::int32_t row = row_of(index_, thread_);
    index_ = index_of(stage + kStages + 1, thread_);
    return row;
  }
  __device__ void keep(int stage, std::int32_t row) {
    if (thread_ < kLooking) shared_.row[stage % kStages][thread_ / kRows][thread_ % kRows] = row;
  }

 private:
  __device__ static std::int64_t first_k(int stage) {
    return static_cast<std::int64_t>(stage) * kRows;
  }
  // What thread `own` of the first ones, or one like it, looks at.
  __device__ std::int32_t index_of(int stage, int own) const {
    const std::int64_t k = first_k(stage) + own % kRows;
    return k < depth_ ? static_cast<std::int32_t>(at(own % kLooking < kRows ? a_.kept : b_.kept, k))
                      : -1;
  }
  __device__ std::int32_t row_of(std::int32_t index, int own) const {
    return index < 0
               ? -1
               : static_cast<std::int32_t>(at(own % kLooking < kRows ? a_.row : b_.row, index));
  }

  Stages<Tile>& shared_;
  const Gathered<T>&a_, &b_;
  const float* const& scale_;
  const std::int64_t& depth_;
  const std::int64_t first_i_, first_j_;
  const int thread_ = static_cast<int>(threadIdx.x);
  std::int32_t index_ = -1;
};

// Of one thread: fragments of 16 x 8 entries, four side by side.
template <int kTile>
using Sums = float[kTile / 32][4][4];

// sum += the product of the panels of a stage, in f32 with factors rounded to TF32, those of a
// after scaling. Lane 4g + t of a warp reads entries 4g .. 4g+3 of 32 columns of a panel at once:
// as rows g and g+8 of two fragments of a, as column g of four fragments of b. So fragments take
// every fourth column, and a lane's sums lie together: 8 columns of rows 4g .. 4g+3.
template <int kTile>
__device__ void multiply(Sums<kTile>& sum, const typename MmaTile<float, kTile>::Stage& stage,
                         const float* scale, int warp_i, int warp_j) {
  constexpr int kRowQuads = kTile / 64;
  const int lane = lane_of_thread();
  for (int step = 0; step < MmaTile<float, kTile>::kRows; step += 8) {
    std::uint32_t a_part[2 * kRowQuads][4], b_part[4][2];
    for (int half = 0; half < 2; ++half) {
      const int k = step + 4 * half + lane % 4;
      const float factor = scale[k];
      for (int q = 0; q < kRowQuads; ++q) {
        const Chunk<float> quad = stage.panel[0].value[k][(warp_i * kRowQuads + q) * 8 + lane / 4];
        for (int i = 0; i < 4; ++i)
          a_part[2 * q + i / 2][2 * half + i % 2] = to_tf32(factor * quad.value[i]);
      }
      const Chunk<float> quad = stage.panel[1].value[k][warp_j * 8 + lane / 4];
      for (int j = 0; j < 4; ++j) b_part[j][half] = to_tf32(quad.value[j]);
    }
    for (int i = 0; i < 2 * kRowQuads; ++i)
      for (int j = 0; j < 4; ++j) mma_tf32(sum[i][j], a_part[i], b_part[j]);
  }
}

// c[i, j] (+)= the sums of a thread, whose warp's entries begin at (row, column).
template <int kTile>
__device__ void store_sums(const GatheredProduct<float>& to, const Sums<kTile>& sum,
                           std::int64_t row, std::int64_t column) {
  const int lane = lane_of_thread();
  for (int i = 0; i < kTile / 16; ++i)
    for (int half = 0; half < 2; ++half) {
      const std::int64_t own_row = row + (i / 4 * 8 + lane / 4) * 4 + i % 4;
      const std::int64_t own_column = column + lane % 4 * 8 + half * 4;
      if (own_row >= to.a.width || own_column >= to.b.width) continue;
      auto& out = *reinterpret_cast<Chunk<float>*>(to.c + own_row * to.b.width + own_column);
      Chunk<float> result = to.accumulate ? out : Chunk<float>{};
      for (int j = 0; j < 4; ++j) result.value[j] += sum[i / 2][j][i % 2 * 2 + half];
      out = result;
    }
}

// Likewise in bf16. Rows of a panel are along k, as its fragments' columns of a and b are not, so
// both are transposed as they are loaded. Scaled, and rounded again, is b: a warp has half as much
// of it as of a.
template <int kTile>
__device__ void multiply(Sums<kTile>& sum, const typename MmaTile<bfloat16, kTile>::Stage& stage,
                         const float* scale, int warp_i, int warp_j) {
  constexpr int kFragments = kTile / 32;
  const int lane = lane_of_thread(), upper = lane / 16, odd = lane / 8 % 2;
  for (int step = 0; step < MmaTile<bfloat16, kTile>::kRows; step += 16) {
    std::uint32_t a_part[kFragments][4], b_part[2][2][2];
    for (int i = 0; i < kFragments; ++i)
      load_blocks_transposed(
          a_part[i],
          &stage.panel[0].value[step + upper * 8 + lane % 8][(warp_i * kFragments + i) * 2 + odd]);
    for (int j = 0; j < 2; ++j) {
      std::uint32_t pair[4];
      load_blocks_transposed(
          pair, &stage.panel[1].value[step + odd * 8 + lane % 8][(warp_j * 2 + j) * 2 + upper]);
      for (int i = 0; i < 4; ++i) {
        const float* factor = scale + step + i % 2 * 8 + lane % 4 * 2;
        b_part[j][i / 2][i % 2] =
            to_bf16_pair(factor[0] * low_bf16(pair[i]), factor[1] * high_bf16(pair[i]));
      }
    }
    for (int i = 0; i < kFragments; ++i)
      for (int j = 0; j < 4; ++j) mma_bf16(sum[i][j], a_part[i], b_part[j / 2][j % 2]);
  }
}

template <int kTile>
__device__ void store_sums(const GatheredProduct<bfloat16>& to, const Sums<kTile>& sum,
                           std::int64_t row, std::int64_t column) {
  struct alignas(8) Pair {
    float value[2];
  };
  const int lane = lane_of_thread();
  for (int i = 0; i < kTile / 16; ++i)
    for (int j = 0; j < 4; ++j) {
      const std::int64_t own_row = row + i * 8 + lane / 4;
      const std::int64_t own_column = column + j * 8 + lane % 4 * 2;
      if (own_row >= to.a.width || own_column >= to.b.width) continue;
      auto& out = *reinterpret_cast<Pair*>(to.c + own_row * to.b.width + own_column);
      const Pair before = to.accumulate ? out : Pair{};
      const float* own = &sum[i / 2][j][i % 2 * 2];
      out = {{before.value[0] + own[0], before.value[1] + own[1]}};
    }
}

// c[i, j] (+)= the products of a group, by `multiply`; sums are f32, and each has one order. Widths
// are multiples of a chunk, `data` and c lie on 16 bytes, and columns are not gathered.
template <class T, int kTile>
__global__ void __launch_bounds__(MmaTile<T, kTile>::kThreads, 2)
    gathered_product_mma_kernel(const __grid_constant__ Several<GatheredProduct<T>> group) {
  using Tile = MmaTile<T, kTile>;
  using Shared = Stages<Tile>;
  VCAS_DYNAMIC_SHARED(Shared, shared);
  const int warp_i = warp_of_thread() / Tile::kWarpsJ, warp_j = warp_of_thread() % Tile::kWarpsJ;
  const TilePlace<T> own = tile_of_block<kTile>(group, *shared);
  RowCopies<Tile> rows(*shared, own);
  Sums<kTile> sum = {};
  for (int stage = 0; stage < rows.stages(); ++stage) {
    copy_async_wait<Tile::kStages - 2>();
    __syncthreads();
    rows.start(stage + Tile::kStages - 1);
    const std::int32_t row = rows.look_up(stage);
    multiply<kTile>(sum, shared->stage[stage % Tile::kStages], shared->scale[stage % Tile::kStages],
                    warp_i, warp_j);
    rows.keep(stage, row);
  }
  store_sums<kTile>(own.product, sum, own.i + warp_i * (kTile / 2),
                    own.j + warp_j * Tile::kColumns);
}

// ---- by warpgroups, on sm_90a ----

// 64 columns of a factor in bf16 as wgmma reads them: 128 bytes for each k, whose chunks trade
// places by k (the 128-byte swizzle), so that neither do lanes that read 8 rows of one chunk meet
// in a bank.
template <int kRows>
struct alignas(1024) SwizzledPanel {
  static constexpr int kChunks = 8;
  Chunk<bfloat16> value[kRows][kChunks];
  __device__ Chunk<bfloat16>& chunk(int k, int c) { return value[k][c ^ k % kChunks]; }
};

// The matrix descriptor of panels side by side, from row k on, a multiple of 8: 8 rows make a
// pattern of 1024 bytes (stride), the next panel is the next 64 columns (leading dimension).
template <int kRows>
__device__ std::uint64_t matrix_descriptor(const SwizzledPanel<kRows>* panels, int k) {
  constexpr std::uint64_t kLeading = sizeof *panels / 16, kStride = 1024 / 16, kSwizzle128 = 1;
  return shared_address(panels->value[k]) / 16 | kLeading << 16 | kStride << 32 | kSwizzle128 << 62;
}

// As MmaTile; 64 columns of b, so many rows of wgmma, are a warpgroup's.
template <int kTile>
struct WgmmaTile {
  using Number = bfloat16;
  static constexpr int kRows = 64, kStages = 3, kSteps = kRows / 16;
  static constexpr int kPanels = kTile / 64;
  static constexpr int kChunks = kTile / Chunk<bfloat16>::kSize;
  static constexpr int kThreads = kPanels * 4 * kWarp;

  struct Stage {
    SwizzledPanel<kRows> panel[2][kPanels];  // of a and b
    __device__ Chunk<bfloat16>& chunk(int factor, int k, int c) {
      return panel[factor][c / 8].chunk(k, c % 8);
    }
  };
};

template <int kTile>
using WgmmaSums = float[kTile / 8][4];  // of one thread

// Starts sum += the product of the panels of a stage, as `multiply` has it: transposed, so that the
// scaled factor is the one that comes from registers, `part`.
template <int kTile>
__device__ void start_products(WgmmaSums<kTile>& sum,
                               std::uint32_t (&part)[WgmmaTile<kTile>::kSteps][4],
                               typename WgmmaTile<kTile>::Stage& stage, const float* scale) {
  const int lane = lane_of_thread(), upper = lane / 16, odd = lane / 8 % 2;
  for (int step = 0; step < WgmmaTile<kTile>::kSteps; ++step) {
    const int k = step * 16;
    load_blocks_transposed(part[step],
                           &stage.chunk(1, k + upper * 8 + lane % 8, warp_of_thread() * 2 + odd));
    for (int i = 0; i < 4; ++i) {
      const float* factor = scale + k + i / 2 * 8 + lane % 4 * 2;
      part[step][i] =
          to_bf16_pair(factor[0] * low_bf16(part[step][i]), factor[1] * high_bf16(part[step][i]));
    }
    wgmma_fence(sum, part[step]);
    wgmma_bf16(sum, part[step], matrix_descriptor(stage.panel[0], k));
  }
  wgmma_commit();
}

// c[i, j] (+)= the sums of a thread, whose block's entries begin at (first_i, first_j). Entries of
// 16 rows are read before one is written, since a read behind a write waits for it.
template <int kTile>
__device__ void store_sums(const GatheredProduct<bfloat16>& to, const WgmmaSums<kTile>& sum,
                           std::int64_t first_i, std::int64_t first_j) {
  constexpr int kAtOnce = 16;
  const int lane = lane_of_thread();
  const std::int64_t own_i = first_i + lane % 4 * 2;
  const std::int64_t width = to.b.width;
  const int rows = static_cast<int>(min(to.a.width - own_i, std::int64_t{kTile}));
  for (int half = 0; half < 2; ++half) {
    const std::int64_t own_j = first_j + warp_of_thread() * 16 + half * 8 + lane / 4;
    if (own_j >= width) return;
    float* own = to.c + own_i * width + own_j;
    for (int first = 0; first < kTile / 4; first += kAtOnce, own += kAtOnce * 4 * width) {
      const auto row = [](int n) { return n / 2 * 8 + n % 2; };
      float before[kAtOnce] = {};
      for (int n = 0; n < kAtOnce; ++n)
        if (to.accumulate && row(first + n) < rows) before[n] = own[row(n) * width];
      for (int n = 0; n < kAtOnce; ++n)
        if (row(first + n) < rows)
          own[row(n) * width] = before[n] + sum[(first + n) / 2][2 * half + n % 2];
    }
  }
}

// As gathered_product_mma_kernel, in bf16, by wgmma, which runs while the next copies are started.
template <int kTile>
__global__ void __launch_bounds__(WgmmaTile<kTile>::kThreads, 2) gathered_product_wgmma_kernel(
    const __grid_constant__ Several<GatheredProduct<bfloat16>> group) {
  using Tile = WgmmaTile<kTile>;
  using Shared = Stages<Tile>;
  VCAS_DYNAMIC_SHARED(Shared, shared);
  const TilePlace<bfloat16> own = tile_of_block<kTile>(group, *shared);
  RowCopies<Tile> rows(*shared, own);
  WgmmaSums<kTile> sum = {};
  for (int stage = 0; stage < rows.stages(); ++stage) {
    copy_async_wait<Tile::kStages - 2>();
    fence_async_proxy();
    __syncthreads();
    std::uint32_t part[Tile::kSteps][4];
    start_products<kTile>(sum, part, shared->stage[stage % Tile::kStages],
                          shared->scale[stage % Tile::kStages]);
    rows.start(stage + Tile::kStages - 1);
    const std::int32_t row = rows.look_up(stage);
    wgmma_wait<0>(sum);
    rows.keep(stage, row);
  }
  store_sums<kTile>(own.product, sum, own.i, own.j);
}

// ---- host ----

template <class T>
int tiles(const Several<GatheredProduct<T>>& group, int tile) {
  int sum = 0;
  for (unsigned n = 0; n < group.size; ++n) sum += group.each[n].tiles(tile);
  return sum;
}

template <int kTile, class T>
void products_on_tensor_cores(Context& context, const Several<GatheredProduct<T>>& group) {
  const auto launch_tiles = [&]<class Tile>(Tile, auto kernel) {
    launch(context, {extent(tiles(group, kTile)), extent(Tile::kThreads), sizeof(Stages<Tile>)},
           kernel, group);
  };
  if constexpr (std::is_same_v<T, bfloat16>)
    if (context.warpgroup_products())
      return launch_tiles(WgmmaTile<kTile>{}, gathered_product_wgmma_kernel<kTile>);
  launch_tiles(MmaTile<T, kTile>{}, gathered_product_mma_kernel<T, kTile>);
}

template <class T>
bool fits_chunks(const Gathered<T>& from) {
  return from.width % Chunk<T>::kSize == 0 && from.stride % Chunk<T>::kSize == 0 &&
         lies_on_chunk(from.data);
}

template <class T>
void gathered_products(Context& context, const Several<GatheredProduct<T>>& group) {
  Several<GatheredProduct<T>> others;
  if constexpr (!std::is_same_v<T, double>) {
    constexpr int kSmall = 64, kLarge = 128;
    const bool tensor_cores = !std::is_same_v<T, float> || context.precision() == Precision::kTf32;
    Several<GatheredProduct<T>> fitting;
    for (unsigned n = 0; n < group.size; ++n) {
      const GatheredProduct<T>& one = group.each[n];
      const bool fits =
          tensor_cores && fits_chunks(one.a) && fits_chunks(one.b) && lies_on_chunk(one.c);
      (fits ? fitting : others).add(one);
    }
    const bool enough = tiles(fitting, kLarge) >= static_cast<int>(context.multiprocessors());
    enough ? products_on_tensor_cores<kLarge>(context, fitting)
           : products_on_tensor_cores<kSmall>(context, fitting);
  } else {
    others = group;
  }
  launch(context, {extent(tiles(others, kTile)), extent(kTileThreads)}, gathered_product_kernel<T>,
         others);
}

}  // namespace vcas::VCAS_DEVICE
