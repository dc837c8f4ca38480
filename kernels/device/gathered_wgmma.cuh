// Gathered products by warpgroups, on sm_90a.
#pragma once

#include "kernels/device/gathered_mma.cuh"

namespace vcas::VCAS_DEVICE {

// Rows of 64 numbers of a factor in bf16, as wgmma reads them. A row has the numbers of one k
// (MN-major), or numbers along k (K-major). Chunks of a row trade places by its number: the
// 128-byte swizzle. So lanes that read one chunk of 8 rows have no bank conflicts.
template <int kRows>
struct alignas(1024) SwizzledPanel {
  static constexpr int kChunks = 8;
  Chunk<bfloat16> value[kRows][kChunks];
  __device__ Chunk<bfloat16>& chunk(int row, int c) {
    return value[row][c ^ (row & (kChunks - 1))];
  }
};

// The matrix descriptor of swizzled panels. Eight rows make a pattern of 1024 bytes, the stride.
// The next panel is `leading` bytes away.
__device__ inline std::uint64_t matrix_descriptor(const void* start, std::uint64_t leading) {
  constexpr std::uint64_t kStride = 1024 / 16, kSwizzle128 = 1;
  return shared_address(start) / 16 | leading / 16 << 16 | kStride << 32 | kSwizzle128 << 62;
}

// The descriptor of panels side by side (MN-major), from row k on, a multiple of 8.
template <int kRows>
__device__ std::uint64_t mn_major_descriptor(const SwizzledPanel<kRows>* panels, int k) {
  return matrix_descriptor(panels->value[k], sizeof *panels);
}

// As MmaTile; 64 columns of b, so many rows of wgmma, are a warpgroup's.
template <int kTileI, int kTileJ>
struct WgmmaTile {
  using Number = bfloat16;
  static constexpr TileSize kSize{kTileI, kTileJ};
  static constexpr int kRows = 64, kSteps = kRows / 16;
  static constexpr int kThreads = kTileJ / 64 * 4 * kWarp;  // that multiply

  using Sums = float[kTileI / 8][4];           // of one thread
  using Fragments = std::uint32_t[kSteps][4];  // of b, of one thread
  struct Stage {
    SwizzledPanel<kRows> a[kTileI / 64], b[kTileJ / 64];
    __device__ Chunk<bfloat16>& chunk(int factor, int k, int c) {
      return (factor == 0 ? a : b)[c / 8].chunk(k, c % 8);
    }
  };
};

// What a thread multiplies of a stage, as `multiply` has it: transposed, so that b, which is
// scaled, comes from registers.
template <class Tile>
__device__ void load_fragments(typename Tile::Fragments& part, typename Tile::Stage& stage,
                               const float* scale) {
  const int lane = lane_of_thread(), upper = lane / 16, odd = lane / 8 % 2;
  for (int step = 0; step < Tile::kSteps; ++step) {
    const int k = step * 16;
    load_blocks_transposed(part[step],
                           &stage.chunk(1, k + upper * 8 + lane % 8, warp_of_thread() * 2 + odd));
    for (int i = 0; i < 4; ++i) {
      const float* factor = scale + k + i / 2 * 8 + lane % 4 * 2;
      part[step][i] =
          to_bf16_pair(factor[0] * low_bf16(part[step][i]), factor[1] * high_bf16(part[step][i]));
    }
  }
}

// Starts sum += the product of the fragments and the panels of a.
template <class Tile>
__device__ void start_products(typename Tile::Sums& sum, typename Tile::Fragments& part,
                               typename Tile::Stage& stage) {
  for (int step = 0; step < Tile::kSteps; ++step) {
    wgmma_fence(sum, part[step]);
    wgmma_bf16<Major::kMn>(sum, part[step], mn_major_descriptor(stage.a, step * 16));
  }
  wgmma_commit();
}

// The sums of a block on their way from registers to rows of c. No two lanes that write meet in a
// bank.
template <class Tile>
struct SumTile {
  static constexpr int kQuads = Tile::kSize.j / Chunk<float>::kSize;
  Chunk<float> quad[Tile::kSize.i][kQuads + 1];
};

// c[i, j] (+)= the sums of all threads that multiply, in place of the stages. Rows of c are read
// while the sums are written there.
template <class Tile>
__device__ void store_sums(Stages<Tile>& shared, const typename Tile::Sums& sum) {
  using Quad = Chunk<float>;
  constexpr int kBarrier = 1, kQuads = SumTile<Tile>::kQuads;
  constexpr int kAtOnce = Tile::kThreads / kQuads, kRounds = Tile::kSize.i / kAtOnce;
  static_assert(sizeof(SumTile<Tile>) <= sizeof shared.stage);
  const TilePlace<bfloat16>& to = shared.tile;
  void* const space = shared.stage;
  auto& tile = *static_cast<SumTile<Tile>*>(space);
  const int lane = lane_of_thread(), thread = static_cast<int>(threadIdx.x);
  barrier_sync(kBarrier, Tile::kThreads);  // no warpgroup reads a stage any more
  for (int half = 0; half < 2; ++half)
    for (int n = 0; n < Tile::kSize.i / 4; ++n) {
      const int j = warp_of_thread() * 16 + half * 8 + lane / 4;
      tile.quad[n / 2 * 8 + lane % 4 * 2 + n % 2][j / Quad::kSize].value[j % Quad::kSize] =
          sum[n / 2][2 * half + n % 2];
    }
  const std::int64_t width = to.product->b.width, column = to.j + thread % kQuads * Quad::kSize;
  const std::int64_t first = to.i + thread / kQuads;
  const auto rows =
      column < width
          ? static_cast<int>(min(to.product->a.width - first, std::int64_t{Tile::kSize.i}))
          : 0;
  float* const own = to.c + first * width + column;
  const auto at = [&](int n) { return reinterpret_cast<Quad*>(own + n * kAtOnce * width); };
  Quad before[kRounds] = {};
  VCAS_UNROLL
  for (int n = 0; n < kRounds; ++n)
    if (to.accumulate && n * kAtOnce < rows) before[n] = *at(n);
  barrier_sync(kBarrier, Tile::kThreads);
  VCAS_UNROLL
  for (int n = 0; n < kRounds; ++n) {
    if (n * kAtOnce >= rows) continue;
    const Quad& more = tile.quad[thread / kQuads + n * kAtOnce][thread % kQuads];
    for (int i = 0; i < Quad::kSize; ++i) before[n].value[i] += more.value[i];
    *at(n) = before[n];
  }
}

template <int kTile>
struct SquareWgmmaTile : WgmmaTile<kTile, kTile> {
  static constexpr int kStages = 3, kChunks = kTile / Chunk<bfloat16>::kSize;
};

// As gathered_product_mma_kernel, in bf16, by wgmma, which runs while the next copies are started.
template <int kTile>
__global__ void __launch_bounds__(SquareWgmmaTile<kTile>::kThreads, 2)
    gathered_product_wgmma_kernel(
        const __grid_constant__ Several<GatheredProduct<bfloat16>> group) {
  using Tile = SquareWgmmaTile<kTile>;
  using Shared = StagesAndRows<Tile>;
  VCAS_DYNAMIC_SHARED(Shared, shared);
  find_tile(group, *shared);
  RowCopies<Tile> rows(*shared);
  typename Tile::Sums sum = {};
  int place = 0;
  for (int left = shared->stages(); left > 0; --left) {
    copy_async_wait<Tile::kStages - 2>();
    fence_async_proxy();
    __syncthreads();
    typename Tile::Fragments part;
    load_fragments<Tile>(part, shared->stage[place], shared->scale[place]);
    start_products<Tile>(sum, part, shared->stage[place]);
    rows.start(place_before<Tile::kStages>(place), left >= Tile::kStages);
    const auto found = rows.look_up();
    wgmma_wait(sum, part);
    rows.keep(place, found);
    place = place_after<Tile::kStages>(place);
  }
  store_sums(*shared, sum);
}

}  // namespace vcas::VCAS_DEVICE
