// Gathered products by specialized warps, on sm_90a: some copy rows, the others multiply them.
#pragma once

#include "kernels/device/gathered_wgmma.cuh"

namespace vcas::VCAS_DEVICE {

// Its entries take a quarter fewer bytes than those of 128 x 128.
struct SpecializedTile : WgmmaTile<256, 128> {
  static constexpr int kStages = 4;
  static constexpr int kCopying = 4 * kWarp;  // threads, behind those that multiply
  // A thread that copies has the former, one that multiplies the latter, each 168 at the launch.
  static constexpr int kCopyingRegisters = 88, kRegisters = 208;
  static_assert(kCopying * kCopyingRegisters + kThreads * kRegisters ==
                (kCopying + kThreads) * 168);
};

// Stages take turns at the places. A place is full when all that was copied there has landed, so
// those that copy never wait for it. It is free when all have multiplied it.
struct SpecializedStages : Stages<SpecializedTile> {
  using Tile = SpecializedTile;
  static constexpr int kAll = Tile::kCopying + Tile::kThreads;
  std::uint64_t landed[Tile::kStages];

  // By all threads, before a barrier of the block.
  __device__ void begin() {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < Tile::kStages) mbarrier_init(landed[thread], Tile::kCopying);
    for (int k = thread; k < Tile::kStages * Tile::kRows; k += kAll)
      scale[k / Tile::kRows][k % Tile::kRows] = 1;
  }
  __device__ static int place(unsigned stage) { return static_cast<int>(stage % Tile::kStages); }
  __device__ void fill(unsigned stage) { copy_async_arrive(landed[place(stage)]); }
  __device__ void wait_until_full(unsigned stage) {
    mbarrier_wait(landed[place(stage)], static_cast<int>(stage / Tile::kStages % 2));
    fence_async_proxy();
  }
  // Barrier 1 is that of store_sums.
  __device__ static void set_free(unsigned stage) { barrier_arrive(2 + place(stage), kAll); }
  __device__ static void wait_until_free(unsigned stage) { barrier_sync(2 + place(stage), kAll); }
};

// The rows of both factors that one warp brings into shared memory: kOwn of each in a stage. A lane
// finds one of them, as RowCopies does, a stage between its two reads and before their use.
class WarpCopies {
  using Tile = SpecializedTile;
  static constexpr int kWarps = Tile::kCopying / kWarp, kOwn = Tile::kRows / kWarps;
  static constexpr int kChunk = Chunk<bfloat16>::kSize;
  static_assert(2 * kOwn == kWarp);

 public:
  __device__ WarpCopies(SpecializedStages& shared, int warp)
      : shared_(shared),
        first_(warp * kOwn),
        column_{{shared.product.a, shared.tile.i + lane_ * kChunk},
                {shared.product.b, shared.tile.j + lane_ % (kWarp / 2) * kChunk}},
        own_(shared.factor(lane_ / kOwn)),
        scale_(shared.product.scale),
        end_(shared.tile.end),
        next_k_(shared.tile.begin + first_ + lane_ % kOwn) {
    full_ = own_.full_row(own_.compact_row(next_k_, end_));
    compact_ = own_.compact_row(next_k_ + Tile::kRows, end_);
  }

  // Starts the copies of the next stage into a place.
  __device__ void start(int place) {
    const RowPlace row = own_.chunk_place(full_);
    const std::int32_t full = own_.full_row(compact_);
    compact_ = own_.compact_row(next_k_ + 2 * Tile::kRows, end_);
    copy_rows<0>(shared_.stage[place], row);
    copy_rows<1>(shared_.stage[place], row);
    if (scale_ && lane_ < kOwn)
      copy_async(&shared_.scale[place][first_ + lane_], scale_ + next_k_, next_k_ < end_);
    full_ = full;
    next_k_ += Tile::kRows;
  }

 private:
  // A row of a factor at a time, or two that are shorter.
  template <int kFactor>
  __device__ void copy_rows(Tile::Stage& to, const RowPlace& found) {
    constexpr int kWidth = kFactor == 0 ? Tile::kSize.i : Tile::kSize.j;
    constexpr int kChunks = kWidth / kChunk, kAtOnce = kWarp / kChunks;
    VCAS_UNROLL
    for (int n = 0; n < kOwn; n += kAtOnce) {
      const int own = n + lane_ / kChunks, from = kFactor * kOwn + own;
      const RowPlace row{__shfl_sync(kAllLanes, found.first, from),
                         __shfl_sync(kAllLanes, found.taps, from)};
      column_[kFactor].copy(to.chunk(kFactor, first_ + own, lane_ % kChunks), row);
    }
  }

  const int lane_ = lane_of_thread();
  SpecializedStages& shared_;
  const int first_;  // the warp's first row of a stage
  const ChunkColumn<bfloat16> column_[2];
  const Gathered<bfloat16> own_;  // the factor of a lane's row
  const float* const scale_;
  const std::int32_t end_;
  std::int32_t next_k_, full_, compact_;
};

// Copies all stages of a block.
__device__ inline void copy_stages(SpecializedStages& shared, int warp) {
  WarpCopies copies(shared, warp);
  const auto all = static_cast<unsigned>(shared.stages());
  for (unsigned stage = 0; stage < all; ++stage) {
    if (stage >= SpecializedTile::kStages) shared.wait_until_free(stage);
    copies.start(shared.place(stage));
    shared.fill(stage);
  }
  copy_async_commit();
  copy_async_wait<0>();
}

// Multiplies them. The fragments of a stage are loaded while the products of the last one run: into
// other registers, so two stages have a copy of the code each.
__device__ inline void multiply_stages(SpecializedStages& shared, SpecializedTile::Sums& sum) {
  using Tile = SpecializedTile;
  const auto all = static_cast<unsigned>(shared.stages());
  const auto load = [&](Tile::Fragments& part, unsigned stage) {
    const int place = shared.place(stage);
    shared.wait_until_full(stage);
    load_fragments<Tile>(part, shared.stage[place], shared.scale[place]);
  };
  unsigned stage = 0;
  const auto multiply = [&](Tile::Fragments& part, Tile::Fragments& next) {
    start_products<Tile>(sum, part, shared.stage[shared.place(stage)]);
    if (stage + 1 < all) load(next, stage + 1);
    wgmma_wait(sum, part);
    if (stage + Tile::kStages < all) shared.set_free(stage);
    ++stage;
  };
  Tile::Fragments one, other;
  if (all > 0) load(one, 0);
  while (stage < all) {
    multiply(one, other);
    if (stage < all) multiply(other, one);
  }
}

// As gathered_product_wgmma_kernel.
__global__ void __launch_bounds__(SpecializedStages::kAll, 1) gathered_product_specialized_kernel(
    const __grid_constant__ Several<GatheredProduct<bfloat16>> group) {
  using Tile = SpecializedTile;
  VCAS_DYNAMIC_SHARED(SpecializedStages, shared);
  shared->begin();
  find_tile(group, *shared);
  constexpr int kMultiplying = Tile::kThreads / kWarp;
  if (warp_of_thread() >= kMultiplying) {
    give_up_registers<Tile::kCopyingRegisters>();
    copy_stages(*shared, warp_of_thread() - kMultiplying);
    return;
  }
  take_registers<Tile::kRegisters>();
  Tile::Sums sum = {};
  multiply_stages(*shared, sum);
  store_sums(*shared, sum);
}

}  // namespace vcas::VCAS_DEVICE
