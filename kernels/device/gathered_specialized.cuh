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

// Barriers of a block, besides those of store_sums: a place is full for a warpgroup that
// multiplies, or free to be copied to.
struct SpecializedBarriers {
  static constexpr int kWarpgroup = 4 * kWarp, kFirst = 2;
  static constexpr int kWarpgroups = SpecializedTile::kThreads / kWarpgroup;
  static constexpr int kOfFull = SpecializedTile::kCopying + kWarpgroup;
  static constexpr int kOfFree = SpecializedTile::kCopying + SpecializedTile::kThreads;

  __device__ static int full(int place, int warpgroup) {
    return kFirst + place * kWarpgroups + warpgroup;
  }
  __device__ static int free(int place) {
    return kFirst + SpecializedTile::kStages * kWarpgroups + place;
  }
};

// The rows of both factors that one warp brings into shared memory: kOwn of each in a stage. A lane
// finds one of them, as RowCopies does, a stage between its two reads and before their use.
class WarpCopies {
  using Tile = SpecializedTile;
  static constexpr int kWarps = Tile::kCopying / kWarp, kOwn = Tile::kRows / kWarps;
  static constexpr int kChunk = Chunk<bfloat16>::kSize;
  static_assert(2 * kOwn == kWarp);

 public:
  __device__ WarpCopies(Stages<Tile>& shared, int warp)
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
    if (lane_ < kOwn) {
      float& scale = shared_.scale[place][first_ + lane_];
      if (scale_)
        copy_async(&scale, scale_ + next_k_, next_k_ < end_);
      else
        scale = 1;
    }
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
  Stages<Tile>& shared_;
  const int first_;  // the warp's first row of a stage
  const ChunkColumn<bfloat16> column_[2];
  const Gathered<bfloat16> own_;  // the factor of a lane's row
  const float* const scale_;
  const std::int32_t end_;
  std::int32_t next_k_, full_, compact_;
};

// Copies all stages of a block, and says which places are full as soon as they are.
__device__ inline void copy_stages(Stages<SpecializedTile>& shared, int warp) {
  using Tile = SpecializedTile;
  using Barriers = SpecializedBarriers;
  constexpr int kAhead = Tile::kStages - 1;
  WarpCopies copies(shared, warp);
  int place = 0;
  for (int stage = 0, all = shared.stages(); stage < all + kAhead; ++stage) {
    if (stage >= kAhead) {
      copy_async_wait<kAhead - 1>();
      fence_async_proxy();
      const int landed = place_after<Tile::kStages>(place);
      for (int n = 0; n < Barriers::kWarpgroups; ++n)
        barrier_arrive(Barriers::full(landed, n), Barriers::kOfFull);
    }
    if (stage >= Tile::kStages && stage < all)
      barrier_sync(Barriers::free(place), Barriers::kOfFree);
    if (stage < all) copies.start(place);
    copy_async_commit();
    place = place_after<Tile::kStages>(place);
  }
}

// Multiplies them. The fragments of a stage are loaded while the products of the last one run: into
// other registers, so two stages have a copy of the code each.
__device__ inline void multiply_stages(Stages<SpecializedTile>& shared,
                                       SpecializedTile::Sums& sum) {
  using Tile = SpecializedTile;
  using Barriers = SpecializedBarriers;
  const int warpgroup = static_cast<int>(threadIdx.x) / Barriers::kWarpgroup;
  const auto load = [&](Tile::Fragments& part, int place) {
    barrier_sync(Barriers::full(place, warpgroup), Barriers::kOfFull);
    load_fragments<Tile>(part, shared.stage[place], shared.scale[place]);
  };
  int place = 0, left = shared.stages();
  const auto multiply = [&](Tile::Fragments& part, Tile::Fragments& next) {
    start_products<Tile>(sum, part, shared.stage[place]);
    const int after = place_after<Tile::kStages>(place);
    if (left > 1) load(next, after);
    wgmma_wait(sum, part);
    if (left > Tile::kStages) barrier_arrive(Barriers::free(place), Barriers::kOfFree);
    place = after;
    --left;
  };
  Tile::Fragments one, other;
  if (left > 0) load(one, place);
  while (left > 0) {
    multiply(one, other);
    if (left > 0) multiply(other, one);
  }
}

// As gathered_product_wgmma_kernel.
__global__ void __launch_bounds__(SpecializedTile::kThreads + SpecializedTile::kCopying, 1)
    gathered_product_specialized_kernel(
        const __grid_constant__ Several<GatheredProduct<bfloat16>> group) {
  using Tile = SpecializedTile;
  VCAS_DYNAMIC_SHARED(Stages<Tile>, shared);
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
