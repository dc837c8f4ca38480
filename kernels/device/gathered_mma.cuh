// Gathered products on tensor cores, by mma.sync.
#pragma once

#include "kernels/device/gathered_product.cuh"

namespace vcas::VCAS_DEVICE {

// A block owns a tile of kTile x kTile entries, a warp of it kTile / 2 x 32. Rows come kRows at a
// time, kStages of them on their way.
template <class T, int kTile>
struct MmaTile {
  using Number = T;
  static constexpr TileSize kSize{kTile, kTile};
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
  using T = typename Tile::Number;
  typename Tile::Stage stage[Tile::kStages];
  float scale[Tile::kStages][Tile::kRows];
  GatheredProduct<T> product;  // the block's, and its part of it:
  TilePlace<T> tile;           // here they take no registers

  __device__ int stages() const { return (tile.end - tile.begin + Tile::kRows - 1) / Tile::kRows; }
  __device__ const Gathered<T>& factor(int which) const {
    return which == 0 ? product.a : product.b;
  }
  __device__ std::int32_t compact_row(int which, std::int32_t k) const {
    return factor(which).compact_row(k, tile.end);
  }
};

// A thread's chunks of the rows of a factor.
template <class T>
struct ChunkColumn {
  __device__ ChunkColumn(const Gathered<T>& from, std::int64_t c) {
    const ColumnPlace place = from.column(c);
    data = reinterpret_cast<const Chunk<T>*>(from.data + place.offset);
    tap = place.tap;
  }
  __device__ void copy(Chunk<T>& to, const RowPlace& row) const {
    copy_async(&to, data + row.first, (tap & ~row.taps) == 0);
  }

  const Chunk<T>* data;
  std::uint32_t tap;
};

template <class Tile>
__device__ void find_tile(const Several<GatheredProduct<typename Tile::Number>>& group,
                          Stages<Tile>& shared) {
  if (threadIdx.x == 0) {
    shared.tile = tile_of_block(group, Tile::kSize);
    shared.product = *shared.tile.product;
    shared.tile.product = &shared.product;
  }
  __syncthreads();
}

// The place before and after one of kStages that are used in turn.
template <int kStages>
__device__ int place_before(int place) {
  return place == 0 ? kStages - 1 : place - 1;
}
template <int kStages>
__device__ int place_after(int place) {
  return place == kStages - 1 ? 0 : place + 1;
}

template <class Tile>
struct StagesAndRows : Stages<Tile> {
  RowPlace row[Tile::kStages][2][Tile::kRows];  // of a and b, as the stages
};

// A block's rows of both factors, as one of its threads brings them into shared memory. The thread
// has the same chunk of every row. So all that does not depend on the row is found once.
//
// Copies of gathered rows run kStages - 1 stages ahead. Which rows those are is known one stage
// earlier still. The first 2 kRows threads find it, one for each row of each factor. A thread reads
// kept[k], then row[kept[k]]. Each read has a stage of time: what it gives is used one stage later.
template <class Tile>
class RowCopies {
  using T = typename Tile::Number;
  static constexpr int kRows = Tile::kRows, kStages = Tile::kStages, kChunks = Tile::kChunks;
  static constexpr int kLooking = 2 * kRows;
  static constexpr int kAtOnce = Tile::kThreads / kChunks, kPasses = kRows / kAtOnce;

 public:
  __device__ explicit RowCopies(StagesAndRows<Tile>& shared)
      : shared_(shared),
        column_{{shared.product.a, shared.tile.i + thread_ % kChunks * Chunk<T>::kSize},
                {shared.product.b, shared.tile.j + thread_ % kChunks * Chunk<T>::kSize}},
        scale_(shared.product.scale),
        next_k_(shared.tile.begin + (kStages + 1) * kRows + thread_ % kRows),
        next_scale_(shared.tile.begin + thread_) {
    if (!scale_)
      for (int k = thread_; k < kStages * kRows; k += Tile::kThreads)
        shared.scale[k / kRows][k % kRows] = 1;
    for (int own = thread_; own < kStages * kLooking; own += Tile::kThreads) {
      const int k = shared.tile.begin + own / kLooking * kRows + own % kRows;
      const int which = own / kRows % 2;
      shared.row[own / kLooking][which][own % kRows] = shared.factor(which).chunk_place(
          shared.factor(which).full_row(shared.compact_row(which, k)));
    }
    if (thread_ < kLooking) {
      full_ = shared.factor(which_).full_row(shared.compact_row(which_, next_k_ - kRows));
      compact_ = shared.compact_row(which_, next_k_);
    }
    __syncthreads();
    for (int stage = 0; stage < kStages - 1; ++stage) start(stage, stage < shared.stages());
  }

  // Starts the copies of the next stage, if there is `any`, into a place.
  __device__ void start(int place, bool any) {
    if (any) {
      auto& to = shared_.stage[place];
      VCAS_UNROLL
      for (int factor = 0; factor < 2; ++factor) {
        RowPlace row[kPasses];  // all before the first copy, which no read passes
        VCAS_UNROLL
        for (int n = 0; n < kPasses; ++n)
          row[n] = shared_.row[place][factor][thread_ / kChunks + n * kAtOnce];
        VCAS_UNROLL
        for (int n = 0; n < kPasses; ++n)
          column_[factor].copy(to.chunk(factor, thread_ / kChunks + n * kAtOnce, thread_ % kChunks),
                               row[n]);
      }
      if (scale_ && thread_ < kRows) {
        copy_async(&shared_.scale[place][thread_], scale_ + next_scale_,
                   next_scale_ < shared_.tile.end);
        next_scale_ += kRows;
      }
    }
    copy_async_commit();
  }

  // What this thread has found for kStages later, and what it reads for the stages behind that.
  struct Found {
    RowPlace row;
    std::int32_t full, compact;
  };
  __device__ Found look_up() {
    if (thread_ >= kLooking) return {};
    const RowPlace row = shared_.factor(which_).chunk_place(full_);
    next_k_ += kRows;
    const std::int32_t compact = shared_.compact_row(which_, next_k_);
    return {row, shared_.factor(which_).full_row(compact_), compact};
  }
  // Takes it, when no thread copies from the rows in `place` any more and time has passed for
  // reads.
  __device__ void keep(int place, const Found& found) {
    if (thread_ >= kLooking) return;
    shared_.row[place][which_][thread_ % kRows] = found.row;
    full_ = found.full;
    compact_ = found.compact;
  }

 private:
  const int thread_ = static_cast<int>(threadIdx.x), which_ = thread_ / kRows;
  StagesAndRows<Tile>& shared_;
  const ChunkColumn<T> column_[2];
  const float* const scale_;
  std::int32_t next_k_, next_scale_, compact_ = -1, full_ = -1;
};

// A thread has fragments of 16 x 8 entries, four side by side.
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
__device__ void store_sums(const TilePlace<float>& to, const Sums<kTile>& sum, int row,
                           int column) {
  const int lane = lane_of_thread();
  const std::int64_t width = to.product->b.width;
  for (int i = 0; i < kTile / 16; ++i)
    for (int half = 0; half < 2; ++half) {
      const std::int64_t own_row = to.i + row + (i / 4 * 8 + lane / 4) * 4 + i % 4;
      const std::int64_t own_column = to.j + column + lane % 4 * 8 + half * 4;
      if (own_row >= to.product->a.width || own_column >= width) continue;
      auto& out = *reinterpret_cast<Chunk<float>*>(to.c + own_row * width + own_column);
      Chunk<float> result = to.accumulate ? out : Chunk<float>{};
      for (int j = 0; j < 4; ++j) result.value[j] += sum[i / 2][j][i % 2 * 2 + half];
      out = result;
    }
}

// The same in bf16. A row of a panel has numbers of one k. A fragment of a or b wants pairs along k
// instead. So both are transposed as they are loaded. The factor that is scaled, and rounded again,
// is b: in tiles of 128 a warp has half as much of it as of a.
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
__device__ void store_sums(const TilePlace<bfloat16>& to, const Sums<kTile>& sum, int row,
                           int column) {
  struct alignas(8) Pair {
    float value[2];
  };
  const int lane = lane_of_thread();
  const std::int64_t width = to.product->b.width;
  for (int i = 0; i < kTile / 16; ++i)
    for (int j = 0; j < 4; ++j) {
      const std::int64_t own_row = to.i + row + i * 8 + lane / 4;
      const std::int64_t own_column = to.j + column + j * 8 + lane % 4 * 2;
      if (own_row >= to.product->a.width || own_column >= width) continue;
      auto& out = *reinterpret_cast<Pair*>(to.c + own_row * width + own_column);
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
  using Shared = StagesAndRows<Tile>;
  VCAS_DYNAMIC_SHARED(Shared, shared);
  const int warp_i = warp_of_thread() / Tile::kWarpsJ, warp_j = warp_of_thread() % Tile::kWarpsJ;
  find_tile(group, *shared);
  RowCopies<Tile> rows(*shared);
  Sums<kTile> sum = {};
  int place = 0;
  for (int left = shared->stages(); left > 0; --left) {
    copy_async_wait<Tile::kStages - 2>();
    __syncthreads();
    rows.start(place_before<Tile::kStages>(place), left >= Tile::kStages);
    const auto found = rows.look_up();
    multiply<kTile>(sum, shared->stage[place], shared->scale[place], warp_i, warp_j);
    rows.keep(place, found);
    place = place_after<Tile::kStages>(place);
  }
  store_sums<kTile>(shared->tile, sum, warp_i * (kTile / 2), warp_j * Tile::kColumns);
}

}  // namespace vcas::VCAS_DEVICE
