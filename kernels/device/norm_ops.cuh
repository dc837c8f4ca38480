// Norms over sets of rows: sums of slices of the rows, statistics of sets, then the rows.
#pragma once

#include "kernels/device/math.cuh"
#include "kernels/device/write_row.cuh"

namespace vcas::VCAS_DEVICE {

// The rows of set n: [offsets[n], offsets[n + 1]); without offsets all, or those before and from
// `split` on.
struct NormSets {
  const std::int64_t* offsets;
  std::int64_t split, rows;
  std::int64_t count, slices;
  std::int64_t width, groups;

  __device__ std::int64_t begin(std::int64_t n) const {
    return offsets ? offsets[n] : n == 0 ? 0 : n == count ? rows : split;
  }
  __device__ std::int64_t end(std::int64_t n) const { return begin(n + 1); }
  __device__ std::int64_t set_of(std::int64_t row) const {
    if (!offsets) return count == 2 && row >= split;
    std::int64_t low = 0, high = count - 1;
    while (low < high) {
      const std::int64_t middle = (low + high + 1) / 2;
      if (offsets[middle] <= row)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
  __host__ __device__ std::int64_t columns() const { return width / groups; }
};

// Statistics by set. One row of them is that of all sets.
template <class C>
struct NormStatistics {
  const C* mean;
  const C* rstd;
  const std::int32_t* item;
  bool shared;

  __device__ std::int64_t row_of(std::int64_t n) const { return shared ? 0 : at(item, n); }
};

constexpr int kNormColumns = 32, kNormLanes = 8;

// sum[set, slice, 2, c]: what first(row, c) and second(row, c) add up to. Blocks (32 columns,
// slice, set), 8 lanes of rows, which are added in order.
template <class First, class Second>
__device__ void sum_norm_columns(double* sum, const NormSets& sets, const First& first,
                                 const Second& second) {
  struct Shared {
    double value[2][kNormLanes][kNormColumns];
  };
  VCAS_SHARED(Shared, shared);
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kNormColumns + threadIdx.x;
  const std::int64_t n = blockIdx.z, end = sets.end(n);
  double own[2] = {};
  if (c < sets.width)
    for (std::int64_t r = sets.begin(n) + blockIdx.y * kNormLanes + threadIdx.y; r < end;
         r += sets.slices * kNormLanes) {
      own[0] += first(r, c);
      own[1] += second(r, c);
    }
  for (int i = 0; i < 2; ++i) shared.value[i][threadIdx.y][threadIdx.x] = own[i];
  __syncthreads();
  if (threadIdx.y > 0 || c >= sets.width) return;
  for (int i = 0; i < 2; ++i) {
    double total = 0;
    for (int lane = 0; lane < kNormLanes; ++lane) total += shared.value[i][lane][threadIdx.x];
    sum[((n * sets.slices + blockIdx.y) * 2 + i) * sets.width + c] = total;
  }
}

// A sum over all slices.
__device__ inline double norm_sum(const double* sum, const NormSets& sets, std::int64_t n,
                                  int which, std::int64_t c) {
  double total = 0;
  for (std::int64_t slice = 0; slice < sets.slices; ++slice)
    total += sum[((n * sets.slices + slice) * 2 + which) * sets.width + c];
  return total;
}

// Differences from the set's first row.
template <class T>
__global__ void norm_sums_kernel(double* sum, const T* x, NormSets sets) {
  const T* const center = x + sets.begin(blockIdx.z) * sets.width;
  const auto apart = [&](std::int64_t r, std::int64_t c) {
    return static_cast<double>(Compute<T>(x[r * sets.width + c])) -
           static_cast<double>(Compute<T>(center[c]));
  };
  sum_norm_columns(sum, sets, apart, [&](std::int64_t r, std::int64_t c) {
    const double d = apart(r, c);
    return d * d;
  });
}

template <class C>
struct NormRunning {
  C* mean;
  C* var;
  double momentum;
};

// One thread a group of a set.
template <class T>
__global__ void norm_statistics_kernel(Compute<T>* mean, Compute<T>* rstd,
                                       NormRunning<Compute<T>> running, const double* sum,
                                       const T* x, NormSets sets, double eps) {
  using C = Compute<T>;
  for_each_element(sets.count * sets.groups, [&](std::int64_t i) {
    const std::int64_t n = i / sets.groups, g = i % sets.groups, columns = sets.columns();
    const std::int64_t begin = sets.begin(n), rows = sets.end(n) - begin;
    if (rows == 0) return;
    const double count = static_cast<double>(rows * columns);
    const auto center = [&](std::int64_t c) {
      return static_cast<double>(C(x[begin * sets.width + c]));
    };
    double average = 0, squares = 0;
    for (std::int64_t c = g * columns; c < (g + 1) * columns; ++c)
      average += (static_cast<double>(rows) * center(c) + norm_sum(sum, sets, n, 0, c)) / count;
    for (std::int64_t c = g * columns; c < (g + 1) * columns; ++c) {
      const double own = norm_sum(sum, sets, n, 0, c) / static_cast<double>(rows);
      const double apart = center(c) + own - average;
      squares +=
          norm_sum(sum, sets, n, 1, c) + static_cast<double>(rows) * (apart * apart - own * own);
    }
    const double variance = max(squares / count, 0.0);
    mean[i] = static_cast<C>(average);
    rstd[i] = static_cast<C>(1 / square_root(variance + eps));
    if (!running.mean) return;
    const double unbiased = variance * count / max(count - 1, 1.0);
    running.mean[g] += static_cast<C>(running.momentum * (average - double(running.mean[g])));
    running.var[g] += static_cast<C>(running.momentum * (unbiased - double(running.var[g])));
  });
}

template <class C>
__global__ void norm_given_kernel(C* mean, C* rstd, const C* given_mean, const C* given_var,
                                  double eps, std::int64_t groups) {
  for_each_element(groups, [&](std::int64_t g) {
    mean[g] = given_mean[g];
    rstd[g] = static_cast<C>(1 / square_root(static_cast<double>(given_var[g]) + eps));
  });
}

template <class T>
__global__ void norm_forward_kernel(T* y, Compute<T>* y_norm, const T* x,
                                    NormStatistics<Compute<T>> of, const T* gamma, const T* beta,
                                    NormSets sets) {
  const std::int64_t r = blockIdx.x, first = of.row_of(sets.set_of(r)) * sets.groups;
  const int width = static_cast<int>(sets.width);
  write_row(y, y_norm, r, width, [&](int c) {
    auto out = load_neighbours(x + r * width, c, width);
    for (int i = 0; i < kNeighbours && c + i < width; ++i) {
      const std::int64_t at = first + (c + i) / sets.columns();
      out.value[i] = (out.value[i] - of.mean[at]) * (of.rstd[at] * Compute<T>(gamma[c + i])) +
                     Compute<T>(beta[c + i]);
    }
    return out;
  });
}

template <class T>
struct NormGradients {
  const T* dy;
  const T* x_full;
  const T* gamma;
  const std::int32_t* row;
  NormStatistics<Compute<T>> of;
  NormSets sets;
  std::int64_t rows_of_mean;  // 0: the rows of a set
  double echo_scale;
  bool fixed;
};

// Sums of dy, and of dy (x - mean).
template <class T>
__global__ void norm_backward_sums_kernel(double* sum, NormGradients<T> t) {
  using C = Compute<T>;
  const std::int64_t width = t.sets.width;
  const C* const mean = t.of.mean + t.of.row_of(blockIdx.z) * t.sets.groups;
  const auto gradient = [&](std::int64_t r, std::int64_t c) {
    return static_cast<double>(C(t.dy[r * width + c]));
  };
  sum_norm_columns(sum, t.sets, gradient, [&](std::int64_t r, std::int64_t c) {
    return gradient(r, c) *
           static_cast<double>(C(t.x_full[at(t.row, r) * width + c]) - mean[c / t.sets.columns()]);
  });
}

// The means over a set and group: mean[set, group, 2] of g, and of g h.
template <class T>
__global__ void norm_means_kernel(double* mean, const double* sum, NormGradients<T> t) {
  using C = Compute<T>;
  const NormSets& sets = t.sets;
  for_each_element(sets.count * sets.groups, [&](std::int64_t i) {
    const std::int64_t n = i / sets.groups, g = i % sets.groups, columns = sets.columns();
    const std::int64_t rows = t.rows_of_mean > 0 ? t.rows_of_mean : sets.end(n) - sets.begin(n);
    const double count = static_cast<double>(max(rows, std::int64_t{1}) * columns);
    const double rstd = static_cast<double>(t.of.rstd[t.of.row_of(n) * sets.groups + g]);
    double of_g = 0, of_gh = 0;
    for (std::int64_t c = g * columns; !t.fixed && c < (g + 1) * columns; ++c) {
      const double gamma = static_cast<double>(C(t.gamma[c]));
      of_g += gamma * norm_sum(sum, sets, n, 0, c) / count;
      of_gh += gamma * norm_sum(sum, sets, n, 1, c) * rstd / count;
    }
    mean[2 * i] = of_g;
    mean[2 * i + 1] = of_gh;
  });
}

// One thread a column, which adds up the sets in order.
template <class T>
__global__ void norm_parameters_kernel(Compute<T>* dgamma, Compute<T>* dbeta, const double* sum,
                                       NormGradients<T> t, bool accumulate) {
  using C = Compute<T>;
  const NormSets& sets = t.sets;
  for_each_element(sets.width, [&](std::int64_t c) {
    double gamma = 0, beta = 0;
    for (std::int64_t n = 0; n < sets.count; ++n) {
      const std::int64_t at = t.of.row_of(n) * sets.groups + c / sets.columns();
      beta += norm_sum(sum, sets, n, 0, c);
      gamma += norm_sum(sum, sets, n, 1, c) * static_cast<double>(t.of.rstd[at]);
    }
    dgamma[c] = static_cast<C>(gamma) + (accumulate ? dgamma[c] : C(0));
    dbeta[c] = static_cast<C>(beta) + (accumulate ? dbeta[c] : C(0));
  });
}

template <class T>
__global__ void norm_backward_kernel(T* dx, Compute<T>* dx_norm, const T* added, const double* mean,
                                     NormGradients<T> t) {
  using C = Compute<T>;
  const std::int64_t r = blockIdx.x, n = t.sets.set_of(r), full = at(t.row, r);
  const std::int64_t first = t.of.row_of(n) * t.sets.groups;
  const int width = static_cast<int>(t.sets.width);
  const bool echo = r >= t.sets.rows;
  const C scale = echo ? static_cast<C>(t.echo_scale) : C(1);
  write_row(dx, dx_norm, r, width, [&](int c) {
    Neighbours<C> out{};
    if (!echo) out = load_neighbours(t.dy + r * width, c, width);
    const auto x = load_neighbours(t.x_full + full * width, c, width);
    Neighbours<C> more{};
    if (added) more = load_neighbours(added + r * width, c, width);
    for (int i = 0; i < kNeighbours && c + i < width; ++i) {
      const std::int64_t g = (c + i) / t.sets.columns();
      const C rstd = t.of.rstd[first + g];
      const C h = (x.value[i] - t.of.mean[first + g]) * rstd;
      const double* const means = mean + 2 * (n * t.sets.groups + g);
      out.value[i] =
          more.value[i] +
          scale * rstd * (out.value[i] * C(t.gamma[c + i]) - C(means[0]) - h * C(means[1]));
    }
    return out;
  });
}

// ---- host ----

inline NormSets norm_sets(const Tensor& rows, const Tensor& offsets, std::int64_t count,
                          std::int64_t split, std::int64_t groups) {
  constexpr std::int64_t kRowsOfSlice = 256, kMostSlices = 64;
  const std::int64_t in_set = rows.rows() / std::max<std::int64_t>(count, 1);
  return {offsets.ptr<std::int64_t>(),
          split,
          rows.rows(),
          count,
          std::clamp<std::int64_t>(ceil_div(in_set, kRowsOfSlice), 1, kMostSlices),
          rows.width(),
          groups};
}
inline Grid grid_of_sums(const NormSets& sets) {
  return {extent(ceil_div(sets.width, kNormColumns), sets.slices, sets.count),
          extent(kNormColumns, kNormLanes)};
}
inline std::int64_t norm_sums_of(const NormSets& sets) {
  return sets.count * sets.slices * 2 * sets.width;
}

void compute(Context& context, const GroupNormForward& args) {
  check_norm(args);
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    const NormSets sets = norm_sets(args.x, args.offsets, args.mean.rows(), 0, args.mean.width());
    auto *mean = args.mean.ptr<C>(), *rstd = args.rstd.ptr<C>();
    const T* x = args.x.ptr<T>();
    if (args.given_mean) {
      launch(context, grid_over(context, sets.groups), norm_given_kernel<C>, mean, rstd,
             args.given_mean.ptr<C>(), args.given_var.ptr<C>(), args.eps, sets.groups);
    } else {
      double* sum = scratch<double>(context, norm_sums_of(sets));
      launch(context, grid_of_sums(sets), norm_sums_kernel<T>, sum, x, sets);
      launch(context, grid_over(context, sets.count * sets.groups), norm_statistics_kernel<T>, mean,
             rstd,
             NormRunning<C>{args.running_mean.ptr<C>(), args.running_var.ptr<C>(), args.momentum},
             sum, x, sets, args.eps);
    }
    launch(context, one_block_a_row(args.y), norm_forward_kernel<T>, args.y.ptr<T>(),
           args.y_norm.ptr<C>(), x, NormStatistics<C>{mean, rstd, nullptr, false},
           args.gamma.ptr<T>(), args.beta.ptr<T>(), sets);
  });
}

void compute(Context& context, const GroupNormBackward& args) {
  check_norm(args);
  with_type(args.dy.dtype, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    const NormSets sets =
        norm_sets(args.dy, args.offsets, args.sets(), args.split, args.mean_full.width());
    double* sum = scratch<double>(context, norm_sums_of(sets) + 2 * sets.count * sets.groups);
    double* mean = sum + norm_sums_of(sets);
    const NormGradients<T> gradients{args.dy.ptr<T>(),
                                     args.x_full.ptr<T>(),
                                     args.gamma.ptr<T>(),
                                     args.row.ptr<std::int32_t>(),
                                     {args.mean_full.ptr<C>(), args.rstd_full.ptr<C>(),
                                      args.item.ptr<std::int32_t>(), args.mean_full.rows() == 1},
                                     sets,
                                     args.rows_of_mean,
                                     args.echo_scale,
                                     args.fixed};
    launch(context, grid_of_sums(sets), norm_backward_sums_kernel<T>, sum, gradients);
    launch(context, grid_over(context, sets.count * sets.groups), norm_means_kernel<T>, mean, sum,
           gradients);
    if (args.dgamma)
      launch(context, grid_over(context, sets.width), norm_parameters_kernel<T>,
             args.dgamma.ptr<C>(), args.dbeta.ptr<C>(), sum, gradients, args.accumulate_parameters);
    if (args.dx)
      launch(context, one_block_a_row(args.dx), norm_backward_kernel<T>, args.dx.ptr<T>(),
             args.dx_norm.ptr<C>(), args.added.ptr<T>(), mean, gradients);
  });
}

}  // namespace vcas::VCAS_DEVICE
