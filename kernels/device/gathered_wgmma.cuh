// Gathered products by warpgroups, on sm_90a; and which kernel a product gets.
#pragma once

#include "kernels/device/gathered_mma.cuh"

namespace vcas::VCAS_DEVICE {

// Rows of 64 numbers of a factor in bf16, as wgmma reads them: the numbers of one k (MN-major), or
// those along k (K-major). Their chunks trade places by the row (the 128-byte swizzle), so that
// neither do lanes that read 8 rows of one chunk meet in a bank.
template <int kRows>
struct alignas(1024) SwizzledPanel {
  static constexpr int kChunks = 8;
  Chunk<bfloat16> value[kRows][kChunks];
  __device__ Chunk<bfloat16>& chunk(int row, int c) {
    return value[row][c ^ (row & (kChunks - 1))];
  }
};

// The matrix descriptor of swizzled panels, of which 8 rows make a pattern of 1024 bytes (stride);
// the next panel is `leading` bytes away.
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
  }
  for (int step = 0; step < WgmmaTile<kTile>::kSteps; ++step) {
    wgmma_fence(sum, part[step]);
    wgmma_bf16<Major::kMn>(sum, part[step], mn_major_descriptor(stage.panel[0], step * 16));
  }
  wgmma_commit();
}

// The sums of a block on their way from registers to rows of c. No two lanes that write meet in a
// bank.
template <int kTile>
struct SumTile {
  static constexpr int kQuads = kTile / Chunk<float>::kSize;
  Chunk<float> quad[kTile][kQuads + 1];
};

// c[i, j] (+)= the sums of all threads, through `space`. Rows of c are read while the sums are
// written there.
template <int kTile>
__device__ void store_sums(const TilePlace<bfloat16>& to, const WgmmaSums<kTile>& sum,
                           void* space) {
  using Quad = Chunk<float>;
  constexpr int kQuads = SumTile<kTile>::kQuads;
  constexpr int kAtOnce = WgmmaTile<kTile>::kThreads / kQuads, kRounds = kTile / kAtOnce;
  auto& tile = *static_cast<SumTile<kTile>*>(space);
  const int lane = lane_of_thread(), thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // no warpgroup reads a stage any more
  for (int half = 0; half < 2; ++half)
    for (int n = 0; n < kTile / 4; ++n) {
      const int j = warp_of_thread() * 16 + half * 8 + lane / 4;
      tile.quad[n / 2 * 8 + lane % 4 * 2 + n % 2][j / Quad::kSize].value[j % Quad::kSize] =
          sum[n / 2][2 * half + n % 2];
    }
  const std::int64_t width = to.product->b.width, column = to.j + thread % kQuads * Quad::kSize;
  const std::int64_t first = to.i + thread / kQuads;
  const auto rows =
      column < width ? static_cast<int>(min(to.product->a.width - first, std::int64_t{kTile})) : 0;
  float* const own = to.c + first * width + column;
  const auto at = [&](int n) { return reinterpret_cast<Quad*>(own + n * kAtOnce * width); };
  Quad before[kRounds] = {};
  VCAS_UNROLL
  for (int n = 0; n < kRounds; ++n)
    if (to.accumulate && n * kAtOnce < rows) before[n] = *at(n);
  __syncthreads();
  VCAS_UNROLL
  for (int n = 0; n < kRounds; ++n) {
    if (n * kAtOnce >= rows) continue;
    const Quad& more = tile.quad[thread / kQuads + n * kAtOnce][thread % kQuads];
    for (int i = 0; i < Quad::kSize; ++i) before[n].value[i] += more.value[i];
    *at(n) = before[n];
  }
}

// As gathered_product_mma_kernel, in bf16, by wgmma, which runs while the next copies are started.
template <int kTile>
__global__ void __launch_bounds__(WgmmaTile<kTile>::kThreads, 2) gathered_product_wgmma_kernel(
    const __grid_constant__ Several<GatheredProduct<bfloat16>> group) {
  using Tile = WgmmaTile<kTile>;
  using Shared = Stages<Tile>;
  VCAS_DYNAMIC_SHARED(Shared, shared);
  find_tile<kTile>(group, *shared);
  RowCopies<Tile> rows(*shared);
  WgmmaSums<kTile> sum = {};
  int place = 0;
  for (int left = rows.stages(); left > 0; --left) {
    copy_async_wait<Tile::kStages - 2>();
    fence_async_proxy();
    __syncthreads();
    std::uint32_t part[Tile::kSteps][4];
    start_products<kTile>(sum, part, shared->stage[place], shared->scale[place]);
    rows.start(place_before<Tile::kStages>(place), left >= Tile::kStages);
    const RowPlace row = rows.look_up();
    wgmma_wait<0>(sum);
    rows.keep(place, row);
    place = place_after<Tile::kStages>(place);
  }
  static_assert(sizeof(SumTile<kTile>) <= sizeof shared->stage);
  store_sums<kTile>(shared->tile, sum, shared->stage);
}

// ---- host ----

template <class T>
int blocks(const Several<GatheredProduct<T>>& group, int tile) {
  int sum = 0;
  for (unsigned n = 0; n < group.size; ++n) sum += group.each[n].blocks(tile);
  return sum;
}

template <int kTile, class T>
void products_on_tensor_cores(Context& context, const Several<GatheredProduct<T>>& group) {
  const auto launch_tiles = [&]<class Tile>(Tile, auto kernel) {
    launch(context, {extent(blocks(group, kTile)), extent(Tile::kThreads), sizeof(Stages<Tile>)},
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

// Gives the sums in pieces room, each 16 bytes aligned, and returns them.
template <class T>
Several<GatheredProduct<T>> place_pieces(Context& context, Several<GatheredProduct<T>>& group) {
  Several<GatheredProduct<T>> in_pieces;
  const auto values = [](const GatheredProduct<T>& one) {
    constexpr std::int64_t kStep = 16 / sizeof(Compute<T>);
    return one.pieces > 1 ? ceil_div(one.pieces * one.a.width * one.b.width, kStep) * kStep : 0;
  };
  std::int64_t all = 0;
  for (unsigned n = 0; n < group.size; ++n) all += values(group.each[n]);
  if (all == 0) return in_pieces;
  Compute<T>* parts = scratch<Compute<T>>(context, all);
  for (unsigned n = 0; n < group.size; ++n) {
    GatheredProduct<T>& one = group.each[n];
    if (one.pieces == 1) continue;
    one.parts = parts;
    parts += values(one);
    in_pieces.add(one);
  }
  return in_pieces;
}

template <class T>
void gathered_products(Context& context, Several<GatheredProduct<T>> group) {
  const Several<GatheredProduct<T>> in_pieces = place_pieces(context, group);
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
    const bool enough = blocks(fitting, kLarge) >= static_cast<int>(context.multiprocessors());
    enough ? products_on_tensor_cores<kLarge>(context, fitting)
           : products_on_tensor_cores<kSmall>(context, fitting);
  } else {
    others = group;
  }
  launch(context, {extent(blocks(others, kTile)), extent(kTileThreads)}, gathered_product_kernel<T>,
         others);
  std::int64_t most = 0;
  for (unsigned n = 0; n < in_pieces.size; ++n)
    most = std::max(most, in_pieces.each[n].a.width * in_pieces.each[n].b.width);
  launch(context, {extent(ceil_div(most, kThreads), in_pieces.size), extent(kThreads)},
         add_pieces_kernel<T>, in_pieces);
}

}  // namespace vcas::VCAS_DEVICE
