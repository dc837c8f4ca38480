// Norms over sets of rows: sums of slices of the rows and statistics of sets, then the rows.
#pragma once

#include <numeric>

#include "kernels/device/math.cuh"
#include "kernels/device/write_row.cuh"

namespace vcas::VCAS_DEVICE {

// The rows of set n: [offsets[n], offsets[n + 1]); without offsets there is one, of all rows.
struct NormSets {
  const std::int64_t* offsets;
  std::int64_t rows;
  std::int64_t count, slices;
  std::int64_t width, groups;
  std::int32_t columns;  // of a group
  std::int32_t part;     // columns whose sums are complete together: whole groups, whole blocks

  __device__ std::int64_t begin(std::int64_t n) const { return offsets ? offsets[n] : n * rows; }
  __device__ std::int64_t end(std::int64_t n) const { return begin(n + 1); }
  __device__ std::int64_t set_of(std::int64_t row) const {
    if (!offsets) return 0;
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
  // What each of the neighbours at c has of values by group.
  template <class C>
  __device__ Neighbours<C> of_groups(const C* values, int c) const {
    const int own_width = static_cast<int>(width);
    if (columns == 1) return load_neighbours(values, c, own_width);
    Neighbours<C> out{};
    for (int i = 0; i < kNeighbours && c + i < own_width; ++i)
      out.value[i] = values[(c + i) / columns];
    return out;
  }
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

constexpr int kNormThreads = 8, kNormColumns = kNormThreads * kNeighbours, kNormLanes = 32;
static_assert(kNormThreads * kNormLanes == kThreads);

// sum[set, slice, 2, c]: what both parts of terms(row, c, width) add up to. Blocks (32 columns,
// slice, set), whose threads are 32 lanes of rows, which are added in order. A lane adds four rows
// before it adds to a double.
template <class C, class Terms>
__device__ void sum_norm_columns(double* sum, const NormSets& sets, const Terms& terms) {
  struct Shared {
    double value[2][kNormLanes][kNormColumns];
  };
  VCAS_SHARED(Shared, shared);
  constexpr int kAtOnce = 4;
  const int thread = static_cast<int>(threadIdx.x), lane = thread / kNormThreads;
  const int width = static_cast<int>(sets.width), own = thread % kNormThreads * kNeighbours;
  const int c = static_cast<int>(blockIdx.x) * kNormColumns + own;
  const std::int64_t n = blockIdx.z, end = sets.end(n), step = sets.slices * kNormLanes;
  double total[2][kNeighbours] = {};
  if (c < width)
    for (std::int64_t first = sets.begin(n) + blockIdx.y * kNormLanes + lane; first < end;
         first += kAtOnce * step) {
      C part[2][kNeighbours] = {};
      VCAS_UNROLL
      for (int k = 0; k < kAtOnce; ++k)
        if (const std::int64_t r = first + k * step; r < end) {
          const auto of = terms(r, c, width);
          for (int i = 0; i < kNeighbours; ++i) {
            part[0][i] += of.first.value[i];
            part[1][i] += of.second.value[i];
          }
        }
      for (int i = 0; i < kNeighbours; ++i)
        for (int which = 0; which < 2; ++which)
          total[which][i] += static_cast<double>(part[which][i]);
    }
  for (int i = 0; i < kNeighbours; ++i)
    for (int which = 0; which < 2; ++which) shared.value[which][lane][own + i] = total[which][i];
  __syncthreads();
  const int which = thread / kNormColumns, column = thread % kNormColumns;
  const std::int64_t out = static_cast<std::int64_t>(blockIdx.x) * kNormColumns + column;
  if (which > 1 || out >= width) return;
  double of_all = 0;
  for (int of = 0; of < kNormLanes; ++of) of_all += shared.value[which][of][column];
  sum[((n * sets.slices + blockIdx.y) * 2 + which) * sets.width + out] = of_all;
}

template <class C>
struct NormTerms {
  Neighbours<C> first, second;
};

// The groups of the running block's part of the columns. There are none unless the block is the
// last to sum columns of that part. The last is counted in the block's own set, or in all sets.
struct NormGroups {
  std::int64_t first, last;
};
__device__ inline NormGroups ends_part(unsigned* count, const NormSets& sets, bool of_all_sets) {
  const auto part = static_cast<unsigned>(sets.part), width = static_cast<unsigned>(sets.width);
  const unsigned own = blockIdx.x * kNormColumns / part;
  const unsigned first = own * part, last = min(first + part, width);
  const unsigned parts = (width + part - 1) / part;
  const unsigned blocks = (last - first + kNormColumns - 1) / kNormColumns * gridDim.y;
  const bool ends = of_all_sets ? ends_last(count + own, blocks * gridDim.z)
                                : ends_last(count + blockIdx.z * parts + own, blocks);
  if (!ends) return {0, 0};
  const auto columns = static_cast<unsigned>(sets.columns);
  return {first / columns, last / columns};
}

// f(i) for each i of [first, last), by a warp.
template <class F>
__device__ void by_warps(std::int64_t first, std::int64_t last, const F& f) {
  for (std::int64_t i = first + warp_of_thread(); i < last; i += kThreads / kWarp) f(i);
}

// A sum over all slices, by a warp. The same result in every lane.
__device__ inline double norm_sum(const double* sum, const NormSets& sets, std::int64_t n,
                                  int which, std::int64_t c) {
  double total = 0;
  for (std::int64_t slice = lane_of_thread(); slice < sets.slices; slice += kWarp)
    total += sum[((n * sets.slices + slice) * 2 + which) * sets.width + c];
  return warp_sum(total);
}

template <class C>
struct NormRunning {
  C* mean;
  C* var;
  double momentum;
};
template <class T>
struct NormInputs {
  const T* x;
  NormSets sets;
  double eps;
};

// The statistics of group g of set n, by a warp.
template <class T>
__device__ void make_statistics(Compute<T>* mean, Compute<T>* rstd,
                                const NormRunning<Compute<T>>& running, const double* sum,
                                const NormInputs<T>& of, std::int64_t n, std::int64_t g) {
  using C = Compute<T>;
  const NormSets& sets = of.sets;
  const std::int64_t i = n * sets.groups + g, columns = sets.columns;
  const std::int64_t begin = sets.begin(n), rows = sets.end(n) - begin;
  if (rows == 0) return;
  const double count = static_cast<double>(rows * columns);
  const auto center = [&](std::int64_t c) {
    return static_cast<double>(C(of.x[begin * sets.width + c]));
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
  if (lane_of_thread() > 0) return;
  const double variance = max(squares / count, 0.0);
  mean[i] = static_cast<C>(average);
  rstd[i] = static_cast<C>(1 / square_root(variance + of.eps));
  if (!running.mean) return;
  const double unbiased = variance * count / max(count - 1, 1.0);
  running.mean[g] += static_cast<C>(running.momentum * (average - double(running.mean[g])));
  running.var[g] += static_cast<C>(running.momentum * (unbiased - double(running.var[g])));
}

// Sums of differences from the set's first row, and of their squares; then the statistics.
template <class T, bool kAligned>
__global__ void norm_statistics_kernel(Compute<T>* mean, Compute<T>* rstd,
                                       NormRunning<Compute<T>> running, double* sum,
                                       unsigned* count, NormInputs<T> of) {
  using C = Compute<T>;
  const NormSets& sets = of.sets;
  const std::int64_t n = blockIdx.z;
  const T* const center = of.x + sets.begin(n) * sets.width;
  sum_norm_columns<C>(sum, sets, [&](std::int64_t r, int c, int width) {
    NormTerms<C> out{load_neighbours<kAligned>(of.x + r * width, c, width), {}};
    const auto from = load_neighbours<kAligned>(center, c, width);
    for (int i = 0; i < kNeighbours; ++i) {
      out.first.value[i] -= from.value[i];
      out.second.value[i] = out.first.value[i] * out.first.value[i];
    }
    return out;
  });
  const NormGroups ended = ends_part(count, sets, false);
  by_warps(ended.first, ended.last,
           [&](std::int64_t g) { make_statistics(mean, rstd, running, sum, of, n, g); });
}

template <class C>
__global__ void norm_given_kernel(C* mean, C* rstd, const C* given_mean, const C* given_var,
                                  double eps, std::int64_t groups) {
  for_each_element(groups, [&](std::int64_t g) {
    mean[g] = given_mean[g];
    rstd[g] = static_cast<C>(1 / square_root(static_cast<double>(given_var[g]) + eps));
  });
}

// What rows of a set have in common, made(set, c) once for as long as a thread asks for the same.
template <class Made>
class OfSet {
 public:
  __device__ explicit OfSet(const Made& made) : made_(made) {}
  __device__ const auto& at(std::int64_t set, int c) {
    if (set != set_ || c != c_) of_ = made_(set, c);
    set_ = set, c_ = c;
    return of_;
  }

 private:
  const Made& made_;
  std::int64_t set_ = -1;
  int c_ = -1;
  decltype(std::declval<Made>()(0, 0)) of_{};
};

// A block writes so many times its rows.
constexpr int kNormTurns = 4;

// f(r) for the rows of the running thread, perhaps beyond the last one.
template <class F>
__device__ void for_rows_in_turn(const F& f) {
  for (int turn = 0; turn < kNormTurns; ++turn)
    f((static_cast<std::int64_t>(blockIdx.x) * kNormTurns + turn) * blockDim.y + threadIdx.y);
}
inline Grid grid_in_turn(const Tensor& rows) {
  Grid grid = grid_of_writers(rows);
  grid.blocks.x = (grid.blocks.x + kNormTurns - 1) / kNormTurns;
  return grid;
}

template <class T, bool kAligned>
__global__ void norm_forward_kernel(T* y, Compute<T>* y_norm, const T* x,
                                    NormStatistics<Compute<T>> of, const T* gamma, const T* beta,
                                    NormSets sets) {
  using C = Compute<T>;
  struct Terms {
    Neighbours<C> mean, slope, shift;
  };
  const int width = static_cast<int>(sets.width);
  const auto made = [&](std::int64_t n, int c) {
    const std::int64_t first = of.row_of(n) * sets.groups;
    Terms out{sets.of_groups(of.mean + first, c), sets.of_groups(of.rstd + first, c),
              load_neighbours<kAligned>(beta, c, width)};
    const auto scale = load_neighbours<kAligned>(gamma, c, width);
    for (int i = 0; i < kNeighbours; ++i) out.slope.value[i] *= scale.value[i];
    return out;
  };
  OfSet of_set(made);
  for_rows_in_turn([&](std::int64_t r) {
    const bool inside = r < sets.rows;
    const std::int64_t n = inside ? sets.set_of(r) : 0;
    write_row<kAligned>(
        y, y_norm, r, width,
        [&](int c) {
          auto out = load_neighbours<kAligned>(x + r * width, c, width);
          const Terms& terms = of_set.at(n, c);
          for (int i = 0; i < kNeighbours; ++i)
            out.value[i] =
                (out.value[i] - terms.mean.value[i]) * terms.slope.value[i] + terms.shift.value[i];
          return out;
        },
        inside);
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
  std::int64_t rows_of_mean;  // 0: those of the set
  std::int64_t rows_written;  // echoes among them
  double echo_scale;
  bool fixed;
};

// The means over a set and group: of g, and of g h. [set, group] each.
template <class C>
struct NormMeans {
  C* of_g;
  C* of_gh;
};
// A warp makes those of group g of set n.
template <class T>
__device__ void make_means(const NormMeans<Compute<T>>& mean, const double* sum,
                           const NormGradients<T>& t, std::int64_t n, std::int64_t g) {
  using C = Compute<T>;
  const NormSets& sets = t.sets;
  const std::int64_t i = n * sets.groups + g, columns = sets.columns;
  const std::int64_t rows = t.rows_of_mean > 0 ? t.rows_of_mean : sets.end(n) - sets.begin(n);
  const double count = static_cast<double>(max(rows, std::int64_t{1}) * columns);
  const double rstd = static_cast<double>(t.of.rstd[t.of.row_of(n) * sets.groups + g]);
  double of_g = 0, of_gh = 0;
  for (std::int64_t c = g * columns; !t.fixed && c < (g + 1) * columns; ++c) {
    const double gamma = static_cast<double>(C(t.gamma[c]));
    of_g += gamma * norm_sum(sum, sets, n, 0, c) / count;
    of_gh += gamma * norm_sum(sum, sets, n, 1, c) * rstd / count;
  }
  if (lane_of_thread() > 0) return;
  mean.of_g[i] = static_cast<C>(of_g);
  mean.of_gh[i] = static_cast<C>(of_gh);
}

template <class C>
struct NormParameters {
  C* dgamma;  // null: not wanted
  C* dbeta;
  bool accumulate;
};
// The gradients of parameter c, by a warp, whose lanes go over the slices of all sets.
template <class T>
__device__ void make_parameters(const NormParameters<Compute<T>>& to, const double* sum,
                                const NormGradients<T>& t, std::int64_t c) {
  using C = Compute<T>;
  const NormSets& sets = t.sets;
  double gamma = 0, beta = 0;
  for (std::int64_t i = lane_of_thread(); i < sets.count * sets.slices; i += kWarp) {
    const std::int64_t group = t.of.row_of(i / sets.slices) * sets.groups + c / sets.columns;
    const double* const own = sum + i * 2 * sets.width + c;
    beta += own[0];
    gamma += own[sets.width] * static_cast<double>(t.of.rstd[group]);
  }
  gamma = warp_sum(gamma), beta = warp_sum(beta);
  if (lane_of_thread() > 0) return;
  to.dgamma[c] = static_cast<C>(gamma) + (to.accumulate ? to.dgamma[c] : C(0));
  to.dbeta[c] = static_cast<C>(beta) + (to.accumulate ? to.dbeta[c] : C(0));
}
template <class T>
__global__ void norm_parameters_kernel(NormParameters<Compute<T>> to, const double* sum,
                                       NormGradients<T> t) {
  const std::int64_t c = row_of_warp();
  if (c < t.sets.width) make_parameters(to, sum, t, c);
}

// Sums of dy, and of dy (x - mean); then the means. Sets without offsets are at most two: a block
// makes those of all and the gradients of parameters.
template <class T, bool kAligned>
__global__ void norm_backward_sums_kernel(NormMeans<Compute<T>> mean,
                                          NormParameters<Compute<T>> parameters, double* sum,
                                          unsigned* count, NormGradients<T> t) {
  using C = Compute<T>;
  const NormSets& sets = t.sets;
  const C* const means = t.of.mean + t.of.row_of(blockIdx.z) * sets.groups;
  sum_norm_columns<C>(sum, sets, [&](std::int64_t r, int c, int width) {
    NormTerms<C> out{load_neighbours<kAligned>(t.dy + r * width, c, width), {}};
    const auto x = load_neighbours<kAligned>(t.x_full + at(t.row, r) * width, c, width);
    const auto mean_of = sets.of_groups(means, c);
    for (int i = 0; i < kNeighbours; ++i)
      out.second.value[i] = out.first.value[i] * (x.value[i] - mean_of.value[i]);
    return out;
  });
  const bool of_all_sets = !sets.offsets;
  const NormGroups ended = ends_part(count, sets, of_all_sets);
  const std::int64_t first = of_all_sets ? 0 : blockIdx.z;
  for (std::int64_t n = first; n < (of_all_sets ? sets.count : first + 1); ++n)
    by_warps(ended.first, ended.last, [&](std::int64_t g) { make_means(mean, sum, t, n, g); });
  if (of_all_sets && parameters.dgamma)
    by_warps(ended.first * sets.columns, ended.last * sets.columns,
             [&](std::int64_t c) { make_parameters(parameters, sum, t, c); });
}

template <class T, bool kAligned>
__global__ void norm_backward_kernel(T* dx, Compute<T>* dx_norm, const T* added,
                                     NormMeans<Compute<T>> mean, NormGradients<T> t) {
  using C = Compute<T>;
  struct Terms {
    Neighbours<C> center, rstd, gamma, of_g, of_gh;
  };
  const int width = static_cast<int>(t.sets.width);
  const auto made = [&](std::int64_t n, int c) {
    const std::int64_t first = t.of.row_of(n) * t.sets.groups, own = n * t.sets.groups;
    return Terms{t.sets.of_groups(t.of.mean + first, c), t.sets.of_groups(t.of.rstd + first, c),
                 load_neighbours<kAligned>(t.gamma, c, width), t.sets.of_groups(mean.of_g + own, c),
                 t.sets.of_groups(mean.of_gh + own, c)};
  };
  OfSet of_set(made);
  for_rows_in_turn([&](std::int64_t r) {
    const bool inside = r < t.rows_written, echo = r >= t.sets.rows;
    const bool in_set = inside && t.sets.count > 0;  // else it fills up a draw that kept no item
    const std::int64_t n = in_set ? t.sets.set_of(r) : 0, full = in_set ? at(t.row, r) : 0;
    const C scale = echo ? static_cast<C>(t.echo_scale) : C(1);
    write_row<kAligned>(
        dx, dx_norm, r, width,
        [&](int c) {
          Neighbours<C> out{}, more{};
          if (!in_set) return out;
          if (!echo) out = load_neighbours<kAligned>(t.dy + r * width, c, width);
          const auto x = load_neighbours<kAligned>(t.x_full + full * width, c, width);
          if (added) more = load_neighbours<kAligned>(added + r * width, c, width);
          const Terms& terms = of_set.at(n, c);
          for (int i = 0; i < kNeighbours; ++i) {
            const C h = (x.value[i] - terms.center.value[i]) * terms.rstd.value[i];
            out.value[i] = more.value[i] + scale * terms.rstd.value[i] *
                                               (out.value[i] * terms.gamma.value[i] -
                                                terms.of_g.value[i] - h * terms.of_gh.value[i]);
          }
          return out;
        },
        inside);
  });
}

// ---- host ----

inline NormSets norm_sets(const Tensor& rows, const Tensor& offsets, std::int64_t count,
                          std::int64_t groups) {
  constexpr std::int64_t kRowsOfSlice = 256, kMostSlices = 128;
  const std::int64_t in_set = rows.rows() / std::max<std::int64_t>(count, 1);
  const std::int64_t columns = std::max<std::int64_t>(rows.width() / groups, 1);
  return {offsets.ptr<std::int64_t>(),
          rows.rows(),
          count,
          std::clamp<std::int64_t>(ceil_div(in_set, kRowsOfSlice), 1, kMostSlices),
          rows.width(),
          groups,
          static_cast<std::int32_t>(columns),
          static_cast<std::int32_t>(std::lcm<std::int64_t>(columns, kNormColumns))};
}
inline Grid grid_of_sums(const NormSets& sets) {
  return {extent(ceil_div(sets.width, kNormColumns), sets.slices, sets.count), extent(kThreads)};
}
inline unsigned* counts_of_parts(Context& context, const NormSets& sets) {
  return context.counts(static_cast<std::size_t>(sets.count * ceil_div(sets.width, sets.part)));
}
inline std::int64_t norm_sums_of(const NormSets& sets) {
  return sets.count * sets.slices * 2 * sets.width;
}

void compute(Context& context, const GroupNormForward& args) {
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    const NormSets sets = norm_sets(args.x, args.offsets, args.mean.rows(), args.mean.width());
    auto *mean = args.mean.ptr<C>(), *rstd = args.rstd.ptr<C>();
    const T* x = args.x.ptr<T>();
    if (args.given_mean) {
      launch(context, grid_over(context, sets.groups), norm_given_kernel<C>, mean, rstd,
             args.given_mean.ptr<C>(), args.given_var.ptr<C>(), args.eps, sets.groups);
    } else {
      double* sum = scratch<double>(context, norm_sums_of(sets));
      with_aligned<T>({&args.x}, [&](auto aligned) {
        launch(context, grid_of_sums(sets), norm_statistics_kernel<T, aligned>, mean, rstd,
               NormRunning<C>{args.running_mean.ptr<C>(), args.running_var.ptr<C>(), args.momentum},
               sum, counts_of_parts(context, sets), NormInputs<T>{x, sets, args.eps});
      });
    }
    with_aligned<T>({&args.y, &args.x, &args.gamma, &args.beta}, [&](auto aligned) {
      launch(context, grid_in_turn(args.y), norm_forward_kernel<T, aligned>, args.y.ptr<T>(),
             args.y_norm.ptr<C>(), x, NormStatistics<C>{mean, rstd, nullptr, false},
             args.gamma.ptr<T>(), args.beta.ptr<T>(), sets);
    });
  });
}

void compute(Context& context, const GroupNormBackward& args) {
  with_type(args.dy.dtype, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    const NormSets sets = norm_sets(args.dy, args.offsets, args.sets(), args.mean_full.width());
    const std::int64_t means = sets.count * sets.groups;
    double* sum = scratch<double>(context, norm_sums_of(sets) + 2 * means);
    C* of_means = reinterpret_cast<C*>(sum + norm_sums_of(sets));
    const NormMeans<C> mean{of_means, of_means + means};
    const NormGradients<T> gradients{args.dy.ptr<T>(),
                                     args.x_full.ptr<T>(),
                                     args.gamma.ptr<T>(),
                                     args.row.ptr<std::int32_t>(),
                                     {args.mean_full.ptr<C>(), args.rstd_full.ptr<C>(),
                                      args.item.ptr<std::int32_t>(), args.mean_full.rows() == 1},
                                     sets,
                                     args.offsets ? 0 : args.x_full.rows(),
                                     args.dx ? args.dx.rows() : 0,
                                     args.echo_scale,
                                     args.fixed};
    const NormParameters<C> parameters{args.dgamma.ptr<C>(), args.dbeta.ptr<C>(),
                                       args.accumulate_parameters};
    with_aligned<T>({&args.dy, &args.x_full}, [&](auto aligned) {
      launch(context, grid_of_sums(sets), norm_backward_sums_kernel<T, aligned>, mean, parameters,
             sum, counts_of_parts(context, sets), gradients);
    });
    if (args.dgamma && args.offsets)
      launch(context, grid_of_rows(sets.width), norm_parameters_kernel<T>, parameters, sum,
             gradients);
    if (!args.dx) return;
    with_aligned<T>(
        {&args.dx, &args.added, &args.dy, &args.x_full, &args.gamma}, [&](auto aligned) {
          launch(context, grid_in_turn(args.dx), norm_backward_kernel<T, aligned>, args.dx.ptr<T>(),
                 args.dx_norm.ptr<C>(), args.added.ptr<T>(), mean, gradients);
        });
  });
}

}  // namespace vcas::VCAS_DEVICE
