// Rows and columns of matrices: norms, column sums, layer norm.
#pragma once

#include "kernels/device/math.cuh"
#include "kernels/device/reduce.cuh"

namespace vcas::VCAS_DEVICE {

// ---- norms ----

// By one warp.
template <class T>
__device__ double norm_of_row(const T* x, std::int64_t width) {
  double sum = 0;
  for (std::int64_t c = lane_of_thread(); c < width; c += kWarp)
    sum += static_cast<double>(x[c]) * static_cast<double>(x[c]);
  return square_root(warp_sum(sum));
}

// score[i] = || dy[i] || || x_full[row[i]] ||; one warp a row of each, which are read once.
template <class T>
__global__ void row_score_kernel(Compute<T>* score, const T* dy, const T* x_full,
                                 const std::int32_t* row, std::int64_t rows, std::int64_t dy_width,
                                 std::int64_t x_width) {
  const std::int64_t i = row_of_warp();
  if (i >= rows) return;
  const auto dy_norm = static_cast<Compute<T>>(norm_of_row(dy + i * dy_width, dy_width));
  const double x_norm = norm_of_row(x_full + at(row, i) * x_width, x_width);
  if (lane_of_thread() == 0)
    score[i] = static_cast<Compute<T>>(static_cast<double>(dy_norm) * x_norm);
}

// One block an item.
template <class T>
__global__ void item_norm_kernel(Compute<T>* norm, const T* x, const std::int64_t* offsets,
                                 std::int64_t width) {
  const std::int64_t n = blockIdx.x;
  double sum = 0;
  for (std::int64_t i = offsets[n] * width + threadIdx.x; i < offsets[n + 1] * width;
       i += blockDim.x)
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) norm[n] = static_cast<Compute<T>>(square_root(sum));
}

// ---- column sums ----

constexpr int kColumnTile = 32, kRowLanes = 8;

// Terms of column sums: the value that row r adds to column c.
template <class T>
struct Entry {
  const T* x;
  std::int64_t width;
  __device__ Compute<T> operator()(std::int64_t r, std::int64_t c) const {
    return x[r * width + c];
  }
};
// dy times the normalised x: the gradient of gamma.
template <class T>
struct NormalisedProduct {
  const T* dy;
  const T* x_full;
  const Compute<T>* mean_full;
  const Compute<T>* rstd_full;
  const std::int32_t* row;
  std::int64_t width;
  __device__ Compute<T> operator()(std::int64_t r, std::int64_t c) const {
    const std::int64_t full = at(row, r);
    return dy[r * width + c] * ((x_full[full * width + c] - mean_full[full]) * rstd_full[full]);
  }
};

// part[y, c] = the sum of the terms of column c over the rows of slice y; with one slice, += into
// `sum` at once. A block has 32 columns and 8 lanes of rows, so reads are whole lines.
template <class T, class Term>
__global__ void column_sum_kernel(T* part, Term term, std::int64_t rows, std::int64_t width) {
  struct Shared {
    T sum[kRowLanes][kColumnTile];
  };
  VCAS_SHARED(Shared, shared);
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kColumnTile + threadIdx.x;
  T sum = 0;
  if (c < width)
    for (std::int64_t r = static_cast<std::int64_t>(blockIdx.y) * kRowLanes + threadIdx.y; r < rows;
         r += static_cast<std::int64_t>(gridDim.y) * kRowLanes)
      sum += term(r, c);
  shared.sum[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || c >= width) return;
  for (int lane = 1; lane < kRowLanes; ++lane) sum += shared.sum[lane][threadIdx.x];
  part[static_cast<std::int64_t>(blockIdx.y) * width + c] = sum;
}

// sum[c] += the parts of column c, in order.
template <class T>
__global__ void add_parts_kernel(T* sum, const T* part, std::int64_t parts, std::int64_t width) {
  for_each_element(width, [&](std::int64_t c) {
    T own = part[c];
    for (std::int64_t p = 1; p < parts; ++p) own += part[p * width + c];
    sum[c] += own;
  });
}

template <class T, class Term>
void add_column_sums(Context& context, T* sum, const Term& term, std::int64_t rows,
                     std::int64_t width) {
  if (rows == 0) return;
  constexpr std::int64_t kRowsPerSlice = 8 * kRowLanes, kMostSlices = 64;
  const std::int64_t slices = std::min(ceil_div(rows, kRowsPerSlice), kMostSlices);
  T* part = scratch<T>(context, slices * width);
  launch(context, {extent(ceil_div(width, kColumnTile), slices), extent(kColumnTile, kRowLanes)},
         column_sum_kernel<T, Term>, part, term, rows, width);
  launch(context, grid_over(context, width), add_parts_kernel<T>, sum, part, slices, width);
}

// ---- layer norm ----

// One warp a row, which stays in L1 between its three passes: read once, written once.
template <class T>
__global__ void layer_norm_forward_kernel(T* y, Compute<T>* mean, Compute<T>* rstd, const T* x,
                                          const T* gamma, const T* beta, Compute<T> eps,
                                          std::int64_t rows, std::int64_t width) {
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
  for (std::int64_t c = lane_of_thread(); c < width; c += kWarp)
    y[r * width + c] = static_cast<T>((in[c] - m) * s * gamma[c] + beta[c]);
  if (lane_of_thread() > 0) return;
  mean[r] = m;
  rstd[r] = s;
}

// With h = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - h mean(g h)). One warp a row.
template <class T>
__global__ void layer_norm_backward_kernel(T* dx, const T* dy, const T* x_full,
                                           const Compute<T>* mean_full, const Compute<T>* rstd_full,
                                           const T* gamma, const std::int32_t* row,
                                           std::int64_t rows, std::int64_t width, bool accumulate) {
  using C = Compute<T>;
  const std::int64_t r = row_of_warp();
  if (r >= rows) return;
  const std::int64_t full = at(row, r);
  const T* x = x_full + full * width;
  const T* in = dy + r * width;
  const C m = mean_full[full], s = rstd_full[full];
  C sum = 0, product = 0;
  for (std::int64_t c = lane_of_thread(); c < width; c += kWarp) {
    const C g = in[c] * gamma[c];
    sum += g;
    product += g * ((x[c] - m) * s);
  }
  const C shift = warp_sum(sum) / static_cast<C>(width);
  const C slope = warp_sum(product) / static_cast<C>(width);
  for (std::int64_t c = lane_of_thread(); c < width; c += kWarp) {
    const C d = s * (in[c] * gamma[c] - shift - (x[c] - m) * s * slope);
    dx[r * width + c] = static_cast<T>(accumulate ? dx[r * width + c] + d : d);
  }
}

// ---- host ----

void compute(Context& context, const RowScore& args) {
  with_type(args.dy.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t rows = args.score.elements();
    launch(context, grid_of_rows(rows), row_score_kernel<T>, args.score.ptr<Compute<T>>(),
           args.dy.ptr<T>(), args.x_full.ptr<T>(), args.row.ptr<std::int32_t>(), rows,
           args.dy.width(), args.x_full.width());
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

void compute(Context& context, const ColumnSum& args) {
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t width = args.x.width();
    add_column_sums(context, args.sum.ptr<Compute<T>>(), Entry<T>{args.x.ptr<T>(), width},
                    args.x.rows(), width);
  });
}

void compute(Context& context, const LayerNormForward& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t rows = args.y.rows();
    launch(context, grid_of_rows(rows), layer_norm_forward_kernel<T>, args.y.ptr<T>(),
           args.mean.ptr<Compute<T>>(), args.rstd.ptr<Compute<T>>(), args.x.ptr<T>(),
           args.gamma.ptr<T>(), args.beta.ptr<T>(), static_cast<Compute<T>>(args.eps), rows,
           args.y.width());
  });
}

void compute(Context& context, const LayerNormBackward& args) {
  VCAS_CHECK(bool{args.dgamma} == bool{args.dbeta}, "dgamma and dbeta come together");
  with_type(args.dy.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t rows = args.dy.rows(), width = args.dy.width();
    const T* dy = args.dy.ptr<T>();
    const T* x = args.x_full.ptr<T>();
    const auto* mean = args.mean_full.ptr<Compute<T>>();
    const auto* rstd = args.rstd_full.ptr<Compute<T>>();
    const auto* row = args.row.ptr<std::int32_t>();
    if (args.dgamma) {
      add_column_sums(context, args.dgamma.ptr<Compute<T>>(),
                      NormalisedProduct<T>{dy, x, mean, rstd, row, width}, rows, width);
      add_column_sums(context, args.dbeta.ptr<Compute<T>>(), Entry<T>{dy, width}, rows, width);
    }
    if (!args.dx) return;
    launch(context, grid_of_rows(rows), layer_norm_backward_kernel<T>, args.dx.ptr<T>(), dy, x,
           mean, rstd, args.gamma.ptr<T>(), row, rows, width, args.accumulate);
  });
}

}  // namespace vcas::VCAS_DEVICE
