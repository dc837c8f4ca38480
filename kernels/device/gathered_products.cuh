// Which kernel a gathered product gets, and its launch.
#pragma once

#include "kernels/device/gathered_specialized.cuh"

namespace vcas::VCAS_DEVICE {

template <class T>
int blocks(const Several<GatheredProduct<T>>& group, TileSize tile) {
  int sum = 0;
  for (unsigned n = 0; n < group.size; ++n) sum += group.each[n].blocks(tile);
  return sum;
}

template <int kTile, class T>
void products_of_squares(Context& context, const Several<GatheredProduct<T>>& group) {
  const auto launch_tiles = [&]<class Tile>(Tile, auto kernel) {
    launch(
        context,
        {extent(blocks(group, Tile::kSize)), extent(Tile::kThreads), sizeof(StagesAndRows<Tile>)},
        kernel, group);
  };
  if constexpr (std::is_same_v<T, bfloat16>)
    if (context.warpgroup_products())
      return launch_tiles(SquareWgmmaTile<kTile>{}, gathered_product_wgmma_kernel<kTile>);
  launch_tiles(MmaTile<T, kTile>{}, gathered_product_mma_kernel<T, kTile>);
}

template <class T>
void products_on_tensor_cores(Context& context, const Several<GatheredProduct<T>>& group) {
  constexpr int kSmall = 64, kLarge = 128;
  const auto multiprocessors = static_cast<int>(context.multiprocessors());
  const int large = blocks(group, {kLarge, kLarge});
  if constexpr (std::is_same_v<T, bfloat16>) {
    using Tile = SpecializedTile;
    // One of them for two of the others: no more entries are left unused.
    const int most = blocks(group, Tile::kSize);
    if (context.warpgroup_products() && 2 * most == large && 2 * most >= multiprocessors)
      return launch(context,
                    {extent(most), extent(SpecializedStages::kAll), sizeof(SpecializedStages)},
                    gathered_product_specialized_kernel, group);
  }
  large >= multiprocessors ? products_of_squares<kLarge>(context, group)
                           : products_of_squares<kSmall>(context, group);
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
    const bool tensor_cores = !std::is_same_v<T, float> || context.precision() == Precision::kTf32;
    Several<GatheredProduct<T>> fitting;
    for (unsigned n = 0; n < group.size; ++n) {
      const GatheredProduct<T>& one = group.each[n];
      const bool fits = tensor_cores && one.few_chunks && fits_chunks(one.a) &&
                        fits_chunks(one.b) && lies_on_chunk(one.c);
      (fits ? fitting : others).add(one);
    }
    products_on_tensor_cores(context, fitting);
  } else {
    others = group;
  }
  launch(context, {extent(blocks(others, {kPlainTile, kPlainTile})), extent(kPlainThreads)},
         gathered_product_kernel<T>, others);
  std::int64_t most = 0;
  for (unsigned n = 0; n < in_pieces.size; ++n)
    most = std::max(most, in_pieces.each[n].a.width * in_pieces.each[n].b.width);
  launch(context, {extent(ceil_div(most, kThreads), in_pieces.size), extent(kThreads)},
         add_pieces_kernel<T>, in_pieces);
}

}  // namespace vcas::VCAS_DEVICE
