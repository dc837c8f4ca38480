// Rows and columns of matrices: norms, column sums, layer norm.
#pragma once

#include "kernels/device/math.cuh"
#include "kernels/device/reduce.cuh"

namespace vcas::VCAS_DEVICE {

// ---- norms ----

template <class T>
struct RowFactor {
  const T* x;
  std::int64_t width;
  const Compute<T>* norm;  // of the parts of each row, optional
  std::int64_t parts;

  // By one warp.
  __device__ Compute<T> norm_of(std::int64_t r) const {
    if (norm && parts == 1) return norm[r];
    return norm ? norm_of(norm + r * parts, parts) : norm_of(x + r * width, width);
  }

 private:
  template <class Values>
  __device__ static Compute<T> norm_of(const Values* values, std::int64_t count) {
    double sum = 0;
    for (std::int64_t i = lane_of_thread(); i < count; i += kWarp)
      sum += squared(static_cast<Compute<T>>(values[i]));
    return norm_from_squares<Compute<T>>(warp_sum(sum));
  }
};

template <class T>
struct ScoredRows {
  Compute<T>* score;
  RowFactor<T> dy, x_full;
  const std::int32_t* row;
  std::int64_t rows;
};

// score[i] = || dy[i] || || x_full[row[i]] ||; one warp a row of each, which are read once. Blocks
// (8 rows, one of the group).
template <class T>
__global__ void row_score_kernel(const __grid_constant__ Several<ScoredRows<T>> group) {
  const ScoredRows<T>& of = group.each[blockIdx.y];
  const std::int64_t i = row_of_warp();
  if (i >= of.rows) return;
  const Compute<T> score = of.dy.norm_of(i) * of.x_full.norm_of(at(of.row, i));
  if (lane_of_thread() == 0) of.score[i] = score;
}

// One block an item.
template <class T>
__global__ void item_norm_kernel(Compute<T>* norm, const T* x, const std::int64_t* offsets,
                                 std::int64_t width) {
  const std::int64_t n = blockIdx.x;
  double sum = 0;
  for (std::int64_t i = offsets[n] * width + threadIdx.x; i < offsets[n + 1] * width;
       i += blockDim.x)
    sum += squared(static_cast<Compute<T>>(x[i]));
  sum = block_sum(sum);
  if (threadIdx.x == 0) norm[n] = norm_from_squares<Compute<T>>(sum);
}

// ---- column sums ----

constexpr int kColumnTile = 32, kRowLanes = 8;

// sum[y, c] = (or, with `accumulate`, +=) the sum of column c of x over the rows of slice y. Rows
// of x are `stride` apart.
template <class T>
struct ColumnSums {
  Compute<T>* sum;  // [slices, width]
  const T* x;
  std::int64_t rows, width, stride, slices;
  bool accumulate;
};

// Blocks (32 columns, slice, one of the group), with 8 lanes of rows, so reads are whole lines.
template <class T>
__global__ void column_sum_kernel(const __grid_constant__ Several<ColumnSums<T>> group) {
  using C = Compute<T>;
  struct Shared {
    C sum[kRowLanes][kColumnTile];
  };
  VCAS_SHARED(Shared, shared);
  const ColumnSums<T>& of = group.each[blockIdx.z];
  if (blockIdx.y >= of.slices) return;
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kColumnTile + threadIdx.x;
  C own = 0;
  if (c < of.width)
    for (std::int64_t r = static_cast<std::int64_t>(blockIdx.y) * kRowLanes + threadIdx.y;
         r < of.rows; r += of.slices * kRowLanes)
      own += of.x[r * of.stride + c];
  shared.sum[threadIdx.y][threadIdx.x] = own;
  __syncthreads();
  if (threadIdx.y > 0 || c >= of.width) return;
  for (int lane = 1; lane < kRowLanes; ++lane) own += shared.sum[lane][threadIdx.x];
  C& out = of.sum[static_cast<std::int64_t>(blockIdx.y) * of.width + c];
  out = of.accumulate ? out + own : own;
}

template <class T>
void column_sums(Context& context, const Several<ColumnSums<T>>& group) {
  std::int64_t width = 0, slices = 0;
  for (unsigned n = 0; n < group.size; ++n) {
    width = std::max(width, group.each[n].width);
    slices = std::max(slices, group.each[n].slices);
  }
  launch(context,
         {extent(ceil_div(width, kColumnTile), slices, group.size), extent(kColumnTile, kRowLanes)},
         column_sum_kernel<T>, group);
}

// ---- layer norm ----

// One warp a row, which stays in L1 between its three passes: read once, written once.
template <class T>
__global__ void layer_norm_forward_kernel(T* y, Compute<T>* y_norm, Compute<T>* mean,
                                          Compute<T>* rstd, const T* x, const T* gamma,
                                          const T* beta, Compute<T> eps, std::int64_t rows,
                                          std::int64_t width) {
  using C = Compute<T>;
  const std::int64_t r = row_of_warp();
  if (r >= rows) return;
  const T* in = x + r * width;
  C sum = 0;
  for (std::int64_t c = lane_of_thread(); c < width; c += kWarp) sum += in[c];
  const C m = warp_sum(sum) / static_cast<C>(width);
  C squares = 0;
  for (std::int64_t c = lane_of_thread(); c < width; c += kWarp)
    squares += (in[c] - m) * (in[c] - m);
  const C variance = warp_sum(squares) / static_cast<C>(width);
  const C s = C(1) / square_root(variance + eps);
  double y_squares = 0;
  for (std::int64_t c = lane_of_thread(); c < width; c += kWarp) {
    const C out = (in[c] - m) * s * gamma[c] + beta[c];
    y[r * width + c] = static_cast<T>(out);
    if (y_norm) y_squares += squared(out);
  }
  if (y_norm) y_squares = warp_sum(y_squares);
  if (lane_of_thread() > 0) return;
  if (y_norm) y_norm[r] = norm_from_squares<C>(y_squares);
  mean[r] = m;
  rstd[r] = s;
}

template <class T>
struct LayerNormGradients {
  T* dx;                // optional
  const T* added;       // to dx, optional; may be dx
  Compute<T>* dx_norm;  // optional
  Compute<T>* part;     // [block, 2, width], of dgamma and dbeta; optional
  const T* dy;
  const T* x_full;
  const Compute<T>* mean_full;
  const Compute<T>* rstd_full;
  const T* gamma;
  const std::int32_t* row;
  std::int64_t rows, width;
};

// With h = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - h mean(g h)), dgamma = the
// sum of dy h over the rows, dbeta = that of dy. A block takes eight rows at a time: first a warp a
// row for dx; then, the rows being in L1, a thread a column for the sums.
template <class T>
__global__ void __launch_bounds__(kThreads) layer_norm_backward_kernel(LayerNormGradients<T> t) {
  using C = Compute<T>;
  constexpr int kRows = kThreads / kWarp;
  VCAS_DYNAMIC_SHARED(C, sum);  // [2, width], each entry of one thread
  if (t.part)
    for (std::int64_t c = threadIdx.x; c < t.width; c += kThreads) sum[c] = sum[t.width + c] = 0;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRows; first < t.rows;
       first += static_cast<std::int64_t>(gridDim.x) * kRows) {
    if (const std::int64_t r = first + warp_of_thread(); t.dx && r < t.rows) {
      const std::int64_t full = at(t.row, r);
      const T* x = t.x_full + full * t.width;
      const T* in = t.dy + r * t.width;
      const C m = t.mean_full[full], s = t.rstd_full[full];
      C g_sum = 0, product = 0;
      for (std::int64_t c = lane_of_thread(); c < t.width; c += kWarp) {
        const C g = in[c] * t.gamma[c];
        g_sum += g;
        product += g * ((x[c] - m) * s);
      }
      const C shift = warp_sum(g_sum) / static_cast<C>(t.width);
      const C slope = warp_sum(product) / static_cast<C>(t.width);
      double squares = 0;
      for (std::int64_t c = lane_of_thread(); c < t.width; c += kWarp) {
        const C d = s * (in[c] * t.gamma[c] - shift - (x[c] - m) * s * slope);
        const C result = t.added ? t.added[r * t.width + c] + d : d;
        t.dx[r * t.width + c] = static_cast<T>(result);
        if (t.dx_norm) squares += squared(result);
      }
      if (t.dx_norm) squares = warp_sum(squares);
      if (t.dx_norm && lane_of_thread() == 0) t.dx_norm[r] = norm_from_squares<C>(squares);
    }
    if (!t.part) continue;
    for (std::int64_t c = threadIdx.x; c < t.width; c += kThreads) {
      C dgamma = sum[c], dbeta = sum[t.width + c];
      for (std::int64_t r = first; r < min(first + kRows, t.rows); ++r) {
        const std::int64_t full = at(t.row, r);
        const C d = t.dy[r * t.width + c];
        dgamma += d * ((t.x_full[full * t.width + c] - t.mean_full[full]) * t.rstd_full[full]);
        dbeta += d;
      }
      sum[c] = dgamma;
      sum[t.width + c] = dbeta;
    }
  }
  if (!t.part) return;
  C* const part = t.part + static_cast<std::int64_t>(blockIdx.x) * 2 * t.width;
  for (std::int64_t c = threadIdx.x; c < t.width; c += kThreads) {
    part[c] = sum[c];
    part[t.width + c] = sum[t.width + c];
  }
}

// ---- host ----

void compute(Context& context, const Group<RowScore>& group) {
  with_type(group[0].dy.dtype, [&](auto type) {
    using T = decltype(type);
    Several<ScoredRows<T>> each;
    std::int64_t most_rows = 0;
    for (const RowScore& args : group) {
      const std::int64_t rows = args.score.elements();
      each.add({args.score.ptr<Compute<T>>(),
                {args.dy.ptr<T>(), args.dy.width(), args.dy_norm.ptr<Compute<T>>(),
                 args.dy_norm.width()},
                {args.x_full.ptr<T>(), args.x_full.width(), args.x_norm_full.ptr<Compute<T>>(),
                 args.x_norm_full.width()},
                args.row.ptr<std::int32_t>(),
                rows});
      most_rows = std::max(most_rows, rows);
    }
    Grid grid = grid_of_rows(most_rows);
    grid.blocks.y = each.size;
    launch(context, grid, row_score_kernel<T>, each);
  });
}

void compute(Context& context, const ItemNorm& args) {
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    launch(context, {extent(args.norm.elements()), extent(kThreads)}, item_norm_kernel<T>,
           args.norm.ptr<Compute<T>>(), args.x.ptr<T>(), args.offsets.ptr<std::int64_t>(),
           args.x.width());
  });
}

void compute(Context& context, const Group<ColumnSum>& group) {
  with_type(group[0].x.dtype, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    constexpr std::int64_t kRowsPerSlice = 8 * kRowLanes, kMostSlices = 64;
    const auto slices_of = [&](const ColumnSum& args) {
      return std::min(ceil_div(args.x.rows(), kRowsPerSlice), kMostSlices);
    };
    std::int64_t elements = 0;
    for (const ColumnSum& args : group) elements += slices_of(args) * args.x.width();
    C* part = scratch<C>(context, elements);
    Several<ColumnSums<T>> parts;
    Several<ColumnSums<C>> sums;
    for (const ColumnSum& args : group) {
      const std::int64_t width = args.x.width(), slices = slices_of(args);
      parts.add({part, args.x.ptr<T>(), args.x.rows(), width, width, slices, false});
      sums.add({args.sum.ptr<C>(), part, slices, width, width, 1, args.accumulate});
      part += slices * width;
    }
    column_sums(context, parts);
    column_sums(context, sums);
  });
}

void compute(Context& context, const LayerNormForward& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t rows = args.y.rows();
    launch(context, grid_of_rows(rows), layer_norm_forward_kernel<T>, args.y.ptr<T>(),
           args.y_norm.ptr<Compute<T>>(), args.mean.ptr<Compute<T>>(), args.rstd.ptr<Compute<T>>(),
           args.x.ptr<T>(), args.gamma.ptr<T>(), args.beta.ptr<T>(),
           static_cast<Compute<T>>(args.eps), rows, args.y.width());
  });
}

void compute(Context& context, const LayerNormBackward& args) {
  VCAS_CHECK(bool{args.dgamma} == bool{args.dbeta}, "dgamma and dbeta come together");
  const std::int64_t rows = args.dy.rows(), width = args.dy.width();
  with_type(args.dy.dtype, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    Grid grid = grid_of_rows(rows);
    C* part = nullptr;
    if (args.dgamma) {
      // Few enough that to add up the parts is little, enough for every multiprocessor.
      grid.blocks.x = std::min(grid.blocks.x, 2 * context.multiprocessors());
      grid.shared_bytes = static_cast<std::size_t>(2 * width) * sizeof(C);
      part = scratch<C>(context, static_cast<std::int64_t>(grid.blocks.x) * 2 * width);
    }
    launch(context, grid, layer_norm_backward_kernel<T>,
           LayerNormGradients<T>{args.dx.ptr<T>(), args.added.ptr<T>(), args.dx_norm.ptr<C>(), part,
                                 args.dy.ptr<T>(), args.x_full.ptr<T>(), args.mean_full.ptr<C>(),
                                 args.rstd_full.ptr<C>(), args.gamma.ptr<T>(),
                                 args.row.ptr<std::int32_t>(), rows, width});
    if (!args.dgamma) return;
    const std::int64_t parts = grid.blocks.x;
    Several<ColumnSums<C>> sums;
    const auto add = [&](const Tensor& sum, const C* first) {
      sums.add({sum.ptr<C>(), first, parts, width, 2 * width, 1, args.accumulate_parameters});
    };
    add(args.dgamma, part);
    add(args.dbeta, part + width);
    column_sums(context, sums);
  });
}

}  // namespace vcas::VCAS_DEVICE
