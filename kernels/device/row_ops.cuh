// Rows and columns of matrices: column sums, layer norm.
#pragma once

#include "kernels/device/column_sum.cuh"
#include "kernels/device/dropout.cuh"
#include "kernels/device/math.cuh"
#include "kernels/device/reduce.cuh"

namespace vcas::VCAS_DEVICE {

// ---- column sums ----

// sum[c] = (or, with `accumulate`, +=) the sum of column c of x over the rows.
template <class T>
struct ColumnSums {
  Compute<T>* sum;   // [width]
  Compute<T>* part;  // [slices, width]
  const T* x;
  std::int64_t rows;
  int width;
  std::int64_t slices;
  bool accumulate;
};

// Blocks (128 columns, slice, one of the group), with 8 lanes of rows. The last slice of some
// columns to end adds up the parts. With kAligned rows lie on packs.
template <class T, bool kAligned>
__global__ void column_sum_kernel(const __grid_constant__ Several<ColumnSums<T>> group,
                                  unsigned* count) {
  const ColumnSums<T>& of = group.each[blockIdx.z];
  if (blockIdx.y >= of.slices || static_cast<int>(blockIdx.x) * kColumnTile >= of.width) return;
  const int c = column_of_thread();
  const auto own = sum_of_slice<kAligned>(of.x, of.rows, of.width, c, blockIdx.y, of.slices);
  sum_over_slices<kAligned>(of.sum, of.part, count + blockIdx.z * gridDim.x + blockIdx.x, own, c,
                            of.width, of.slices, of.accumulate);
}

// ---- layer norm ----

// What a layer norm reads: x, or the sum that becomes x.
template <class T>
struct NormInput {
  T* x;
  const T* branch;
  const T* residual;
  RowDropout<Compute<T>> dropout;
};

// With kSum, row r is written first.
template <class T, int kHeld, bool kSum>
__device__ WarpRow<T, kHeld> norm_input(const NormInput<T>& of, std::int64_t r, int width) {
  constexpr bool kAligned = kHeld > 0;
  T* const x = of.x + r * width;
  if constexpr (!kSum) return WarpRow<T, kHeld>(x, width);
  const RowMask<Compute<T>> mask(of.dropout, r, width);
  return WarpRow<T, kHeld>(x, width, [&](int c) {
    auto sum = load_neighbours<kAligned>(of.branch + r * width, c, width);
    mask.apply(sum, c);
    const auto residual = load_neighbours<kAligned>(of.residual + r * width, c, width);
    for (int i = 0; i < kNeighbours; ++i) sum.value[i] += residual.value[i];
    return sum;
  });
}

// One warp a row.
template <class T, int kHeld, bool kSum>
__global__ void layer_norm_forward_kernel(T* y, Compute<T>* y_norm, Compute<T>* center,
                                          Compute<T>* rstd, NormInput<T> input, const T* gamma,
                                          const T* beta, Compute<T> eps, std::int64_t rows,
                                          int width) {
  using C = Compute<T>;
  constexpr bool kAligned = kHeld > 0;
  const std::int64_t r = row_of_warp();
  if (r >= rows) return;
  const WarpRow<T, kHeld> in = norm_input<T, kHeld, kSum>(input, r, width);
  const C x_first = input.x[r * width];
  C sum = 0;
  for_lane_columns<kHeld>(width, [&](int k, int c) {
    const Neighbours<C> of = in.at(k, c);
    for (int i = 0; i < kNeighbours; ++i)
      if (c + i < width) sum += of.value[i] - x_first;
  });
  const C m = warp_sum(sum) / static_cast<C>(width);
  C squares = 0;
  for_lane_columns<kHeld>(width, [&](int k, int c) {
    const Neighbours<C> of = in.at(k, c);
    for (int i = 0; i < kNeighbours; ++i) {
      const C d = of.value[i] - x_first - m;
      if (c + i < width) squares += d * d;
    }
  });
  const C variance = warp_sum(squares) / static_cast<C>(width);
  const C s = C(1) / square_root(variance + eps);
  double y_squares = 0;
  for_lane_columns<kHeld>(width, [&](int k, int c) {
    Neighbours<C> out = in.at(k, c);
    const auto g = load_neighbours<kAligned>(gamma, c, width),
               b = load_neighbours<kAligned>(beta, c, width);
    for (int i = 0; i < kNeighbours; ++i)
      out.value[i] = (out.value[i] - x_first - m) * s * g.value[i] + b.value[i];
    store_neighbours<kAligned>(y + r * width, c, width, out);
    if (y_norm) y_squares += sum_of_squares<kAligned>(out, c, width);
  });
  if (y_norm) y_squares = warp_sum(y_squares);
  if (lane_of_thread() > 0) return;
  if (y_norm) y_norm[r] = norm_from_squares<C>(y_squares);
  center[r] = m;
  rstd[r] = s;
}

template <class T>
struct LayerNormGradients {
  T* dx;                // optional
  const T* added;       // to dx, optional; may be dx
  Compute<T>* dx_norm;  // optional
  Compute<T>* part;     // [block, 2, width], optional: for dgamma and dbeta
  unsigned* count;      // for their sums
  unsigned fan;         // blocks whose parts are summed at first
  Compute<T>* dgamma;
  Compute<T>* dbeta;
  bool accumulate;
  const T* dy;
  const T* x_full;
  const Compute<T>* center_full;
  const Compute<T>* rstd_full;
  const T* gamma;
  const std::int32_t* row;
  std::int64_t rows;
  int width;
  T* dbranch;                // optional: the dropout of dx
  Compute<T>* dbranch_norm;  // optional
  RowDropout<Compute<T>> dropout;
};

// With h = (x - x[0] - center) rstd and g = dy gamma: dx = rstd (g - mean(g) - h mean(g h)), dgamma
// = the sum of dy h over the rows, dbeta = that of dy. A block takes eight rows at a time: first a
// warp a row for dx; then, the rows being in L1, a thread a column for the sums. The last of each
// `fan` blocks to end adds up their parts, and the last of these blocks those.
template <class T, int kHeld, bool kBranch>
__global__ void __launch_bounds__(kThreads) layer_norm_backward_kernel(LayerNormGradients<T> t) {
  using C = Compute<T>;
  constexpr bool kAligned = kHeld > 0;
  constexpr int kRows = kThreads / kWarp;
  VCAS_DYNAMIC_SHARED(C, sum);  // [2, width], each entry of one thread
  const auto for_own_columns = [&](const auto& f) {
    const int own = static_cast<int>(threadIdx.x) * kNeighbours;
    for (int c = own; c < t.width; c += kThreads * kNeighbours) f(c);
  };
  if (t.part)
    for_own_columns([&](int c) {
      for (C* const of : {sum, sum + t.width}) store_neighbours<kAligned>(of, c, t.width, {});
    });
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRows; first < t.rows;
       first += static_cast<std::int64_t>(gridDim.x) * kRows) {
    if (const std::int64_t r = first + warp_of_thread(); t.dx && r < t.rows) {
      const std::int64_t full = at(t.row, r);
      const WarpRow<T, kHeld> x(t.x_full + full * t.width, t.width);
      const WarpRow<T, kHeld> in(t.dy + r * t.width, t.width);
      const C x_first = t.x_full[full * t.width], m = t.center_full[full], s = t.rstd_full[full];
      // f(i, h, g) for the neighbours at c, inside the width
      const auto for_each = [&](int k, int c, const auto& f) {
        const auto x_of = x.at(k, c), in_of = in.at(k, c),
                   gamma = load_neighbours<kAligned>(t.gamma, c, t.width);
        for (int i = 0; i < kNeighbours; ++i)
          if (kAligned || c + i < t.width)
            f(i, (x_of.value[i] - x_first - m) * s, in_of.value[i] * gamma.value[i]);
      };
      C g_sum = 0, product = 0;
      for_lane_columns<kHeld>(t.width, [&](int k, int c) {
        for_each(k, c, [&](int, C h, C g) {
          g_sum += g;
          product += g * h;
        });
      });
      const C shift = warp_sum(g_sum) / static_cast<C>(t.width);
      const C slope = warp_sum(product) / static_cast<C>(t.width);
      double squares = 0, branch_squares = 0;
      const RowMask<C> mask(t.dropout, full, t.width);
      for_lane_columns<kHeld>(t.width, [&](int k, int c) {
        Neighbours<C> out{};
        if (t.added) out = load_neighbours<kAligned>(t.added + r * t.width, c, t.width);
        for_each(k, c, [&](int i, C h, C g) { out.value[i] += s * (g - shift - h * slope); });
        const Packed<T> packed = pack<T>(out);
        store_packed<kAligned>(t.dx + r * t.width, c, t.width, packed);
        if (t.dx_norm) squares += sum_of_squares<kAligned>(out, c, t.width);
        if constexpr (kBranch) {
          out = unpack(packed);
          mask.apply(out, c);
          store_neighbours<kAligned>(t.dbranch + r * t.width, c, t.width, out);
          if (t.dbranch_norm) branch_squares += sum_of_squares<kAligned>(out, c, t.width);
        }
      });
      const auto write_norm = [&](C* norm, double total) {
        if (!norm) return;
        total = warp_sum(total);
        if (lane_of_thread() == 0) norm[r] = norm_from_squares<C>(total);
      };
      write_norm(t.dx_norm, squares);
      if constexpr (kBranch) write_norm(t.dbranch_norm, branch_squares);
    }
    if (!t.part) continue;
    for_own_columns([&](int c) {
      auto dgamma = load_neighbours<kAligned>(sum, c, t.width),
           dbeta = load_neighbours<kAligned>(sum + t.width, c, t.width);
      constexpr int kAtOnce = 2;  // rows on their way together
      for (std::int64_t own = first; own < first + kRows; own += kAtOnce) {
        Packed<T> d_of[kAtOnce] = {}, x_of[kAtOnce] = {};
        C center[kAtOnce] = {}, x_first[kAtOnce] = {}, rstd[kAtOnce] = {};
        VCAS_UNROLL
        for (int n = 0; n < kAtOnce; ++n)
          if (const std::int64_t r = own + n; r < t.rows) {
            const std::int64_t full = at(t.row, r);
            d_of[n] = load_packed<kAligned>(t.dy + r * t.width, c, t.width);
            x_of[n] = load_packed<kAligned>(t.x_full + full * t.width, c, t.width);
            x_first[n] = t.x_full[full * t.width];
            center[n] = t.center_full[full], rstd[n] = t.rstd_full[full];
          }
        VCAS_UNROLL
        for (int n = 0; n < kAtOnce; ++n) {
          const auto d = unpack(d_of[n]), x = unpack(x_of[n]);
          for (int i = 0; i < kNeighbours; ++i) {
            dgamma.value[i] += d.value[i] * ((x.value[i] - x_first[n] - center[n]) * rstd[n]);
            dbeta.value[i] += d.value[i];
          }
        }
      }
      store_neighbours<kAligned>(sum, c, t.width, dgamma);
      store_neighbours<kAligned>(sum + t.width, c, t.width, dbeta);
    });
  }
  if (!t.part) return;
  const auto part_of = [&](unsigned block) {
    return t.part + static_cast<std::int64_t>(block) * 2 * t.width;
  };
  for_own_columns([&](int c) {
    for (const int of : {0, t.width})
      store_neighbours<kAligned>(part_of(blockIdx.x) + of, c, t.width,
                                 load_neighbours<kAligned>(sum + of, c, t.width));
  });
  const unsigned group = blockIdx.x / t.fan * t.fan;
  for (bool last = false;; last = true) {
    const unsigned first = last ? 0 : group, step = last ? t.fan : 1;
    const unsigned end = last ? gridDim.x : min(group + t.fan, gridDim.x);
    if (!ends_last(last ? t.count : t.count + 1 + group / t.fan, (end - first + step - 1) / step))
      return;
    for_own_columns([&](int c) {
      Neighbours<C> total[2] = {};  // dgamma and dbeta
      if (last && t.accumulate) {
        total[0] = load_neighbours<kAligned>(t.dgamma, c, t.width);
        total[1] = load_neighbours<kAligned>(t.dbeta, c, t.width);
      }
      constexpr unsigned kAtOnce = 4;  // of both, on their way together
      for (unsigned block = first; block < end; block += kAtOnce * step) {
        Packed<C> part[kAtOnce][2] = {};
        VCAS_UNROLL
        for (unsigned n = 0; n < kAtOnce; ++n)
          for (int of = 0; of < 2 && block + n * step < end; ++of)
            part[n][of] =
                load_packed<kAligned>(part_of(block + n * step) + of * t.width, c, t.width);
        VCAS_UNROLL
        for (unsigned n = 0; n < kAtOnce; ++n)
          for (int of = 0; of < 2; ++of) {
            const auto more = unpack(part[n][of]);
            for (int i = 0; i < kNeighbours; ++i) total[of].value[i] += more.value[i];
          }
      }
      C* const out = part_of(first);
      store_neighbours<kAligned>(last ? t.dgamma : out, c, t.width, total[0]);
      store_neighbours<kAligned>(last ? t.dbeta : out + t.width, c, t.width, total[1]);
    });
    if (last) return;
  }
}

// ---- host ----

void compute(Context& context, const Group<ColumnSum>& group) {
  with_type(group[0].x.dtype, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    constexpr std::int64_t kRowsPerSlice = 32 * kRowLanes, kMostSlices = 64;
    const auto slices_of = [&](const ColumnSum& args) {
      return std::clamp<std::int64_t>(ceil_div(args.x.rows(), kRowsPerSlice), 1, kMostSlices);
    };
    std::int64_t elements = 0, slices = 0;
    int width = 0;
    bool aligned = true;
    for (const ColumnSum& args : group) {
      elements += slices_of(args) * args.x.width();
      slices = std::max(slices, slices_of(args));
      width = std::max(width, width_of(args.x));
      aligned = aligned && are_aligned<T>({&args.x, &args.sum});
    }
    C* part = scratch<C>(context, elements);
    Several<ColumnSums<T>> sums;
    for (const ColumnSum& args : group) {
      sums.add({args.sum.ptr<C>(), part, args.x.ptr<T>(), args.x.rows(), width_of(args.x),
                slices_of(args), args.accumulate});
      part += slices_of(args) * args.x.width();
    }
    const std::int64_t tiles = ceil_div(width, kColumnTile);
    launch(context, {extent(tiles, slices, sums.size), extent(kColumnThreads, kRowLanes)},
           aligned ? column_sum_kernel<T, true> : column_sum_kernel<T, false>, sums,
           context.counts(static_cast<std::size_t>(tiles * sums.size)));
  });
}

void compute(Context& context, const LayerNormForward& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    const std::int64_t rows = args.y.rows();
    const NormInput<T> input{args.x.ptr<T>(), args.branch.ptr<T>(), args.residual.ptr<T>(),
                             row_dropout<C>(args.dropout.p, step_key(args.dropout))};
    with_held<T>({&args.x, &args.y, &args.gamma, &args.beta, &args.branch, &args.residual},
                 [&]<int kHeld>(Constant<kHeld>) {
                   launch(context, grid_of_rows(rows),
                          args.branch ? layer_norm_forward_kernel<T, kHeld, true>
                                      : layer_norm_forward_kernel<T, kHeld, false>,
                          args.y.ptr<T>(), args.y_norm.ptr<C>(), args.center.ptr<C>(),
                          args.rstd.ptr<C>(), input, args.gamma.ptr<T>(), args.beta.ptr<T>(),
                          static_cast<C>(args.eps), rows, width_of(args.y));
                 });
  });
}

void compute(Context& context, const LayerNormBackward& args) {
  VCAS_CHECK(bool{args.dgamma} == bool{args.dbeta}, "dgamma and dbeta come together");
  VCAS_CHECK(args.dx || !args.dbranch, "the gradient of a branch without that of the sum");
  const std::int64_t rows = args.dy.rows();
  const int width = width_of(args.dy);
  with_type(args.dy.dtype, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    Grid grid = grid_of_rows(rows);
    C* part = nullptr;
    unsigned* count = nullptr;
    unsigned fan = 1;
    if (args.dgamma) {
      // Few enough that to add up the parts is little, enough for every multiprocessor. Where there
      // are no rows, one block writes zeros.
      grid.blocks.x = std::clamp(grid.blocks.x, 1u, 2 * context.multiprocessors());
      // Whole 16 bytes: nvcc reads so many at once where only the first of them are used.
      constexpr std::int64_t kNumbers = 16 / sizeof(C);
      grid.shared_bytes = static_cast<std::size_t>(ceil_div(2 * width, kNumbers)) * 16;
      part = scratch<C>(context, static_cast<std::int64_t>(grid.blocks.x) * 2 * width);
      while (fan * fan < grid.blocks.x) ++fan;
      count = context.counts(1 + std::size_t{fan});
    }
    const LayerNormGradients<T> gradients{args.dx.ptr<T>(),
                                          args.added.ptr<T>(),
                                          args.dx_norm.ptr<C>(),
                                          part,
                                          count,
                                          fan,
                                          args.dgamma.ptr<C>(),
                                          args.dbeta.ptr<C>(),
                                          args.accumulate_parameters,
                                          args.dy.ptr<T>(),
                                          args.x_full.ptr<T>(),
                                          args.center_full.ptr<C>(),
                                          args.rstd_full.ptr<C>(),
                                          args.gamma.ptr<T>(),
                                          args.row.ptr<std::int32_t>(),
                                          rows,
                                          width,
                                          args.dbranch.ptr<T>(),
                                          args.dbranch_norm.ptr<C>(),
                                          row_dropout<C>(args.dropout.p, step_key(args.dropout))};
    with_held<T>({&args.dy, &args.x_full, &args.dx, &args.added, &args.gamma, &args.dbranch,
                  &args.dgamma, &args.dbeta},
                 [&]<int kHeld>(Constant<kHeld>) {
                   launch(context, grid,
                          args.dbranch ? layer_norm_backward_kernel<T, kHeld, true>
                                       : layer_norm_backward_kernel<T, kHeld, false>,
                          gradients);
                 });
  });
}

}  // namespace vcas::VCAS_DEVICE
