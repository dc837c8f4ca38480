// Convolutions by warpgroups, on sm_90a; and which kernel a convolution gets.
#pragma once

#include "kernels/device/gathered_wgmma.cuh"
#include "kernels/device/patch_product.cuh"

namespace vcas::VCAS_DEVICE {

// A block owns 128 x kTileN entries, a warpgroup 64 rows of them.
template <int kTileN>
struct PatchWgmmaTile {
  using Number = bfloat16;
  static constexpr int kRows = 128, kColumns = kTileN, kStages = kTileN == 64 ? 4 : 3;
  static constexpr int kChunks = SwizzledPanel<kRows>::kChunks;
  static constexpr int kSteps = kChunks / 2;  // of 16 numbers along the sum
  static constexpr int kThreads = kRows / 64 * 4 * kWarp;
  using Sums = float[kColumns / 8][4];  // of one thread

  struct Stage {
    SwizzledPanel<kRows> x_panel;
    SwizzledPanel<kColumns> weight_panel;
    __device__ Chunk<bfloat16>& x(int row, int c) { return x_panel.chunk(row, c); }
    __device__ Chunk<bfloat16>& weight(int row, int c) { return weight_panel.chunk(row, c); }
  };
};

// The matrix descriptor of 16 numbers, from a chunk on, of each row of a panel (K-major). There is
// no next panel. Row 0 is not swizzled.
template <int kRows>
__device__ std::uint64_t k_major_descriptor(const SwizzledPanel<kRows>& panel, int chunk) {
  return matrix_descriptor(&panel.value[0][chunk], 16);
}

// Starts sum += the product of a stage, whose x comes from registers, `part`.
template <int kTileN>
__device__ void start_products(typename PatchWgmmaTile<kTileN>::Sums& sum,
                               std::uint32_t (&part)[PatchWgmmaTile<kTileN>::kSteps][4],
                               typename PatchWgmmaTile<kTileN>::Stage& stage) {
  const int lane = lane_of_thread();
  for (int step = 0; step < PatchWgmmaTile<kTileN>::kSteps; ++step)
    load_blocks(part[step], &stage.x(warp_of_thread() * 16 + lane % 16, step * 2 + lane / 16));
  for (int step = 0; step < PatchWgmmaTile<kTileN>::kSteps; ++step) {
    wgmma_fence(sum, part[step]);
    wgmma_bf16<Major::kK>(sum, part[step], k_major_descriptor(stage.weight_panel, step * 2));
  }
  wgmma_commit();
}

// As patch_product_mma_kernel, in bf16, by wgmma, which runs while the next copies are started.
template <int kTileN>
__global__ void __launch_bounds__(PatchWgmmaTile<kTileN>::kThreads, 2)
    patch_product_wgmma_kernel(const __grid_constant__ PatchProduct<bfloat16> product) {
  using Tile = PatchWgmmaTile<kTileN>;
  using Shared = PatchShared<Tile>;
  VCAS_DYNAMIC_SHARED(Shared, shared);
  PatchCopies<Tile> copies(product, *shared);
  typename Tile::Sums sum = {};
  int place = 0;
  for (int left = copies.stages(); left > 0; --left) {
    copy_async_wait<Tile::kStages - 2>();
    fence_async_proxy();
    __syncthreads();
    std::uint32_t part[Tile::kSteps][4];
    start_products<kTileN>(sum, part, shared->stage[place]);
    copies.start(place_before<Tile::kStages>(place), left >= Tile::kStages);
    wgmma_wait(sum, part);
    place = place_after<Tile::kStages>(place);
  }
  __syncthreads();  // no warpgroup reads a stage any more
  for (int j = 0; j < kTileN / 8; ++j) keep_sums(*shared, warp_of_thread() * 16, j * 8, sum[j]);
  __syncthreads();
  store_rows(product, *shared, copies.first_n());
}

// ---- host ----

template <class T>
void patch_product(Context& context, const PatchProduct<T>& product) {
  if constexpr (!std::is_same_v<T, double>) {
    const auto launch_tiles = [&]<class Tile>(Tile, auto kernel) {
      launch(context,
             {extent(product.tiles(Tile::kRows, Tile::kColumns)), extent(Tile::kThreads),
              sizeof(PatchShared<Tile>)},
             kernel, product);
    };
    constexpr int kSmall = 64, kLarge = 128;
    const auto multiprocessors = static_cast<int>(context.multiprocessors());
    const bool large = product.width > kSmall && product.tiles(kLarge, kLarge) >= multiprocessors;
    const bool tensor_cores = !std::is_same_v<T, float> || context.precision() == Precision::kTf32;
    if (tensor_cores && lies_on_chunk(product.x) && lies_on_chunk(product.weight) &&
        lies_on_chunk(product.y) && lies_on_chunk(product.bias)) {
      if constexpr (std::is_same_v<T, bfloat16>)
        // Smaller tiles of few rows keep more multiprocessors busy.
        if (context.warpgroup_products() && 2 * product.tiles(kLarge, kSmall) >= multiprocessors)
          return large ? launch_tiles(PatchWgmmaTile<kLarge>{}, patch_product_wgmma_kernel<kLarge>)
                       : launch_tiles(PatchWgmmaTile<kSmall>{}, patch_product_wgmma_kernel<kSmall>);
      return large ? launch_tiles(PatchMmaTile<T, kLarge>{}, patch_product_mma_kernel<T, kLarge>)
                   : launch_tiles(PatchMmaTile<T, kSmall>{}, patch_product_mma_kernel<T, kSmall>);
    }
  }
  launch(context, {extent(product.tiles(kPlainTile, kPlainTile)), extent(kPlainThreads)},
         patch_product_kernel<T>, product);
}

template <class T>
void direct_forward(Context& context, const LinearForward& args) {
  patch_product(context, PatchProduct<T>{args.y.ptr<T>(), args.x.ptr<T>(), args.weight.ptr<T>(),
                                         args.bias.ptr<T>(), false, false, PatchSizes(args.patches),
                                         static_cast<std::int32_t>(args.y.rows()),
                                         static_cast<std::int32_t>(args.y.width()),
                                         static_cast<std::int32_t>(args.x.width())});
}

template <class T>
void direct_backward(Context& context, const LinearBackwardInput& args) {
  T* turned = scratch<T>(context, args.weight.elements());
  launch(context, grid_over(context, args.weight.elements()), turn_weight_kernel<T>, turned,
         args.weight.ptr<T>(), args.dy.width(), args.patches.taps(), args.dx.width());
  patch_product(context, PatchProduct<T>{args.dx.ptr<T>(), args.dy.ptr<T>(), turned, nullptr,
                                         args.accumulate, true, PatchSizes(args.patches),
                                         static_cast<std::int32_t>(args.dx.rows()),
                                         static_cast<std::int32_t>(args.dx.width()),
                                         static_cast<std::int32_t>(args.dy.width())});
}

}  // namespace vcas::VCAS_DEVICE
