// Products over gathered rows by copies: rows are laid side by side in scratch, and multiplied
// there.
#pragma once

#include "kernels/device/gathered_product.cuh"
#include "kernels/device/neighbours.cuh"
#include "kernels/device/product.cuh"

namespace vcas::VCAS_DEVICE {

// a[r] and b[r] = the rows of summand `first` + r, that of b times its scale, in T. They are zeros
// from `count` on. A null `a` is not made. A warp a row. Blocks (rows, factor).
template <class T, bool kAligned>
__global__ void copy_rows_kernel(const __grid_constant__ GatheredProduct<T> of, T* a, T* b,
                                 std::int64_t first, std::int64_t rows) {
  const std::int64_t r = row_of_warp();
  if (r >= rows) return;
  const bool is_a = a && blockIdx.y == 0;
  const Gathered<T>& from = is_a ? of.a : of.b;
  const auto k = static_cast<std::int32_t>(first + r);
  const std::int32_t row = from.full_row(from.compact_row(k, static_cast<std::int32_t>(of.rows())));
  const bool inside = row >= 0;
  const auto width = static_cast<int>(from.width);
  const Compute<T> scale = inside && !is_a && of.scale ? of.scale[k] : Compute<T>(1);
  const T* const source = from.data + (inside ? row * from.stride : 0);
  T* const to = (is_a ? a : b) + r * from.width;
  for_lane_columns<0>(width, [&](int, int c) {
    Neighbours<Compute<T>> values{};
    if (inside) values = load_neighbours<kAligned>(source, c, width);
    for (Compute<T>& value : values.value) value *= scale;
    store_neighbours<kAligned>(to, c, width, values);
  });
}

// ---- host ----

// `most`: so many rows are copied at a time.
template <class T>
void copied_product(Context& context, const GatheredProduct<T>& of, std::int64_t most) {
  constexpr std::int64_t kStep = 16 / sizeof(T);  // a lies on 16 bytes behind b
  const bool copies_a = of.a.kept;
  T* const b = scratch<T>(context, most * (of.a.width + of.b.width) + kStep);
  T* const a = copies_a ? b + ceil_div(most * of.b.width, kStep) * kStep : nullptr;
  const bool aligned = !std::is_same_v<T, double> &&
                       lie_on_packs(of.a.data, of.a.width, of.a.stride) &&
                       lie_on_packs(of.b.data, of.b.width, of.b.stride);
  for (std::int64_t first = 0; first < of.depth; first += most) {
    const std::int64_t rows = std::min(most, of.depth - first);
    Grid grid = grid_of_rows(rows);
    grid.blocks.y = copies_a ? 2 : 1;
    launch(context, grid, aligned ? copy_rows_kernel<T, true> : copy_rows_kernel<T, false>, of, a,
           b, first, rows);
    const T* const left = copies_a ? a : of.a.data + first * of.a.stride;
    dense_product<T, Compute<T>>(context, of.a.width, of.b.width, rows, {left, of.a.width, true},
                                 {b, of.b.width}, of.c, of.accumulate || first > 0);
  }
}

}  // namespace vcas::VCAS_DEVICE
