// Layer norm.
#pragma once

#include "kernels/device/column_sum.cuh"
#include "kernels/device/dropout.cuh"
#include "kernels/device/math.cuh"
#include "kernels/device/reduce.cuh"

namespace vcas::VCAS_DEVICE {

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
  T* const x = of.x + r * width;
  if constexpr (!kSum) return WarpRow<T, kHeld>(x, width);
  const WarpRow<T, kHeld> branch(of.branch + r * width, width);
  const WarpRow<T, kHeld> residual(of.residual + r * width, width);
  RowMask<Compute<T>> mask(of.dropout, r, width);
  return WarpRow<T, kHeld>(x, width, [&](int k, int c) {
    auto sum = branch.at(k, c);
    mask.template apply<(kHeld > 0)>(sum, c, k);
    const auto added = residual.at(k, c);
    for (int i = 0; i < kNeighbours; ++i) sum.value[i] += added.value[i];
    return sum;
  });
}

// The norm of a row that the lanes of a warp have written.
template <class T, class C>
__device__ void write_norm(C* norm, const LaneSquares<C>& squares, const T* row, int width) {
  const double total = warp_sum(squares.total(row, width));
  if (lane_of_thread() == 0) *norm = norm_from_squares<C>(total);
}

// A row that a lane holds takes so many bytes for each of kNeighbours columns. Registers are too
// few for much more than one wide row. With 12 bytes a multiprocessor has room for four blocks.
template <class T, int kHeld>
constexpr int kHeldBytes = static_cast<int>(sizeof(T)) * kHeld;

// One warp a row.
template <class T, int kHeld, int kWidth, bool kSum>
__global__ void __launch_bounds__(kThreads, kHeldBytes<T, kHeld> == 12 ? 4 : 1)
    layer_norm_forward_kernel(T* y, Compute<T>* y_norm, Compute<T>* center, Compute<T>* rstd,
                              NormInput<T> input, const T* gamma, const T* beta, Compute<T> eps,
                              std::int64_t rows, int any_width) {
  using C = Compute<T>;
  const int width = kWidth > 0 ? kWidth : any_width;
  constexpr bool kAligned = kHeld > 0;
  const std::int64_t r = row_of_warp();
  if (r >= rows) return;
  const WarpRow<T, kHeld> in = norm_input<T, kHeld, kSum>(input, r, width);
  const C x_first = in.first();
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
  LaneSquares<C> squares_of_y;
  T* const y_row = computed_once<kAligned>(y, r * width);
  constexpr int kHeldGamma = (kHeldBytes<T, kHeld>) > 16 ? 0 : kHeld;
  const WarpRow<T, kHeldGamma, kAligned> gammas(gamma, width), betas(beta, width);
  for_lane_columns<kHeld>(width, [&](int k, int c) {
    Neighbours<C> out = in.at(k, c);
    const auto g = gammas.at(k, c), b = betas.at(k, c);
    for (int i = 0; i < kNeighbours; ++i)
      out.value[i] = (out.value[i] - x_first - m) * s * g.value[i] + b.value[i];
    store_neighbours<kAligned>(y_row, c, width, out);
    squares_of_y.template add<kAligned>(out, c, width);
  });
  if (y_norm) write_norm(y_norm + r, squares_of_y, y + r * width, width);
  if (lane_of_thread() > 0) return;
  center[r] = m;
  rstd[r] = s;
}

// Blocks of a backward that a multiprocessor has registers for: a thread has 80, else 128.
template <class T, int kHeld>
constexpr int kBackwardBlocks = kHeldBytes<T, kHeld> == 12 ? 3 : 2;

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
  const std::int32_t* dy_row;  // optional, as dy_scale
  const Compute<T>* dy_scale;
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
// = the sum of dy h over the rows, dbeta = that of dy. A warp a row, which adds to sums of its own
// in shared memory. The last of each `fan` blocks to end adds up their parts, and the last of these
// blocks those.
template <class T, int kHeld, int kWidth, bool kBranch>
__global__ void __launch_bounds__(kThreads, (kBackwardBlocks<T, kHeld>))
    layer_norm_backward_kernel(const __grid_constant__ LayerNormGradients<T> t) {
  using C = Compute<T>;
  constexpr bool kAligned = kHeld > 0;
  constexpr int kHeldAdded = (kHeldBytes<T, kHeld>) > 16 ? 0 : kHeld;
  constexpr int kHeldGamma = (kHeldBytes<T, kHeld>) > 12 ? 0 : kHeld;
  constexpr bool kOnce = kAligned && kHeldBytes<T, kHeld> <= 24;  // else there are no registers
  const int width = kWidth > 0 ? kWidth : t.width;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  VCAS_DYNAMIC_SHARED(C, sums);  // [warps, 2, width], with t.part
  C *own_dgamma = nullptr, *own_dbeta = nullptr;
  if (t.part) {
    own_dgamma = sums + warp_of_thread() * 2 * width;
    own_dbeta = own_dgamma + width;
    for_lane_columns<kHeld>(width, [&](int, int c) {
      for (C* const of : {own_dgamma, own_dbeta}) store_neighbours<kAligned>(of, c, width, {});
    });
  }
  for (std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * warps + warp_of_thread();
       r < t.rows; r += static_cast<std::int64_t>(gridDim.x) * warps) {
    const std::int64_t full = at(t.row, r);
    WarpRow<T, kHeld> x(t.x_full + full * width, width);
    WarpRow<T, kHeld> dy(t.dy + at(t.dy_row, r) * width, width);
    const WarpRow<T, kHeldGamma, kAligned> gammas(t.gamma, width);
    WarpRow<T, kHeldAdded, kAligned> added;
    if (t.added) added = {t.added + r * width, width};
    const C m = t.center_full[full], s = t.rstd_full[full], x_first = x.first();
    const C scale = t.dy_scale ? t.dy_scale[r] : C(1);
    // f(i, d, h, g) for the neighbours at c, inside the width
    const auto for_each = [&](int k, int c, C times, const auto& f) {
      const auto x_of = x.at(k, c), dy_of = dy.at(k, c), gamma = gammas.at(k, c);
      for (int i = 0; i < kNeighbours; ++i) {
        const C d = times * dy_of.value[i];
        if (kAligned || c + i < width)
          f(i, d, (x_of.value[i] - x_first - m) * s, d * gamma.value[i]);
      }
    };
    C g_sum = 0, product = 0;
    for_lane_columns<kHeld>(width, [&](int k, int c) {
      for_each(k, c, C(1), [&](int, C, C h, C g) {
        g_sum += g;
        product += g * h;
      });
    });
    const C shift = scale * (warp_sum(g_sum) / static_cast<C>(width));
    const C slope = scale * (warp_sum(product) / static_cast<C>(width));
    if constexpr ((kBackwardBlocks<T, kHeld>) > 2) {
      x.unpack_again();
      dy.unpack_again();
    }
    LaneSquares<C> squares, squares_of_branch;
    T* const dx_row = computed_once<kOnce>(t.dx, r * width);
    [[maybe_unused]] T* const branch_row = computed_once<kOnce>(t.dbranch, r * width);
    [[maybe_unused]] RowMask<C> mask(t.dropout, full, width);
    for_lane_columns<kHeld>(width, [&](int k, int c) {
      Neighbours<C> out = added.at(k, c), dgamma{}, dbeta{};
      if (t.part) {
        dgamma = load_neighbours<kAligned>(own_dgamma, c, width);
        dbeta = load_neighbours<kAligned>(own_dbeta, c, width);
      }
      for_each(k, c, scale, [&](int i, C d, C h, C g) {
        out.value[i] += s * (g - shift - h * slope);
        dgamma.value[i] += d * h;
        dbeta.value[i] += d;
      });
      if (t.part) {
        store_neighbours<kAligned>(own_dgamma, c, width, dgamma);
        store_neighbours<kAligned>(own_dbeta, c, width, dbeta);
      }
      if (!t.dx) return;
      const Packed<T> packed = pack<T>(out);
      store_packed<kAligned>(dx_row, c, width, packed);
      squares.template add<kAligned>(out, c, width);
      if constexpr (kBranch) {
        out = unpack(packed);
        mask.template apply<kAligned>(out, c, k);
        store_neighbours<kAligned>(branch_row, c, width, out);
        squares_of_branch.template add<kAligned>(out, c, width);
      }
    });
    if (t.dx_norm) write_norm(t.dx_norm + r, squares, t.dx + r * width, width);
    if constexpr (kBranch)
      if (t.dbranch_norm)
        write_norm(t.dbranch_norm + r, squares_of_branch, t.dbranch + r * width, width);
  }
  if (!t.part) return;
  const auto part_of = [&](unsigned block) {
    return t.part + static_cast<std::int64_t>(block) * 2 * width;
  };
  const auto for_own_columns = [&](const auto& f) {
    const int own = static_cast<int>(threadIdx.x) * kNeighbours;
    for (int c = own; c < width; c += static_cast<int>(blockDim.x) * kNeighbours) f(c);
  };
  __syncthreads();  // the sums of all warps are complete
  for_own_columns([&](int c) {
    for (const int of : {0, width}) {
      Neighbours<C> total{};
      for (int warp = 0; warp < warps; ++warp) {
        const auto more = load_neighbours<kAligned>(sums + warp * 2 * width + of, c, width);
        for (int i = 0; i < kNeighbours; ++i) total.value[i] += more.value[i];
      }
      store_neighbours<kAligned>(part_of(blockIdx.x) + of, c, width, total);
    }
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
        total[0] = load_neighbours<kAligned>(t.dgamma, c, width);
        total[1] = load_neighbours<kAligned>(t.dbeta, c, width);
      }
      constexpr unsigned kAtOnce = kAligned ? 9 : 4;  // of both, on their way together
      for (unsigned block = first; block < end; block += kAtOnce * step) {
        Packed<C> part[kAtOnce][2] = {};
        VCAS_UNROLL
        for (unsigned n = 0; n < kAtOnce; ++n)
          for (int of = 0; of < 2 && block + n * step < end; ++of)
            part[n][of] = load_packed<kAligned>(part_of(block + n * step) + of * width, c, width);
        VCAS_UNROLL
        for (unsigned n = 0; n < kAtOnce; ++n)
          for (int of = 0; of < 2; ++of) {
            const auto more = unpack(part[n][of]);
            for (int i = 0; i < kNeighbours; ++i) total[of].value[i] += more.value[i];
          }
      }
      C* const out = part_of(first);
      store_neighbours<kAligned>(last ? t.dgamma : out, c, width, total[0]);
      store_neighbours<kAligned>(last ? t.dbeta : out + width, c, width, total[1]);
    });
    if (last) return;
  }
}

// ---- host ----

void compute(Context& context, const LayerNormForward& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    const std::int64_t rows = args.y.rows();
    const NormInput<T> input{args.x.ptr<T>(), args.branch.ptr<T>(), args.residual.ptr<T>(),
                             row_dropout<C>(args.dropout.p, step_key(args.dropout))};
    with_held<T>(args.y.width(),
                 {&args.x, &args.y, &args.gamma, &args.beta, &args.branch, &args.residual},
                 [&]<int kHeld, int kWidth>(Constant<kHeld>, Constant<kWidth>) {
                   launch(context, grid_of_rows(rows),
                          args.branch ? layer_norm_forward_kernel<T, kHeld, kWidth, true>
                                      : layer_norm_forward_kernel<T, kHeld, kWidth, false>,
                          args.y.ptr<T>(), args.y_norm.ptr<C>(), args.center.ptr<C>(),
                          args.rstd.ptr<C>(), input, args.gamma.ptr<T>(), args.beta.ptr<T>(),
                          static_cast<C>(args.eps), rows, width_of(args.y));
                 });
  });
}

void compute(Context& context, const LayerNormBackward& args) {
  const std::int64_t rows = args.rows();
  const int width = width_of(args.dy);
  with_type(args.dy.dtype, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    Grid grid = grid_of_rows(rows);
    C* part = nullptr;
    unsigned* count = nullptr;
    unsigned fan = 1;
    const std::initializer_list<const Tensor*> held = {&args.dy,     &args.x_full, &args.dx,
                                                       &args.added,  &args.gamma,  &args.dbranch,
                                                       &args.dgamma, &args.dbeta};
    if (args.dgamma) {
      // Few enough that to add up the parts is little, enough for every multiprocessor. Where there
      // are no rows, one block writes zeros.
      const std::int64_t bytes = 2 * std::max(width, 1) * std::int64_t{sizeof(C)};  // of a warp
      constexpr std::size_t kDeclared = 1024;  // by the kernel, besides
      check_shared(context, static_cast<std::size_t>(bytes) + kDeclared,
                   "layer norms of width " + std::to_string(width),
                   "make the model narrower, or train it on device=\"cpu\"");
      const std::int64_t shared = static_cast<std::int64_t>(context.most_shared_bytes()) / 2;
      const std::int64_t warps = std::clamp<std::int64_t>(shared / bytes, 1, kThreads / kWarp);
      std::int64_t at_once = 0;  // on a multiprocessor, which may have less shared memory
      with_held<T>(width, held, [&]<int kHeld, int kWidth>(Constant<kHeld>, Constant<kWidth>) {
        at_once = std::min<std::int64_t>(kBackwardBlocks<T, kHeld>, 2 * shared / (warps * bytes));
      });
      const std::int64_t blocks = ceil_div(rows, warps);
      const std::int64_t most = at_once * context.multiprocessors();
      // Whole 16 bytes: nvcc reads so many at once where only the first of them are used.
      grid = {extent(std::clamp<std::int64_t>(blocks, 1, most)), extent(warps * kWarp),
              static_cast<std::size_t>(ceil_div(warps * bytes, 16)) * 16};
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
                                          args.dy_row.ptr<std::int32_t>(),
                                          args.dy_scale.ptr<C>(),
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
    with_held<T>(width, held, [&]<int kHeld, int kWidth>(Constant<kHeld>, Constant<kWidth>) {
      launch(context, grid,
             args.dbranch ? layer_norm_backward_kernel<T, kHeld, kWidth, true>
                          : layer_norm_backward_kernel<T, kHeld, kWidth, false>,
             gradients);
    });
  });
}

}  // namespace vcas::VCAS_DEVICE
