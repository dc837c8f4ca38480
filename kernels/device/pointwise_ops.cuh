// Element by element: activations, dropout, sums, copies, optimizers. Each byte is read and written
// once: by blocks of rows, or by one thread an element in a grid that goes round.
#pragma once

#include "kernels/clipping.h"
#include "kernels/device/dropout.cuh"
#include "kernels/device/math.cuh"
#include "kernels/device/write_row.cuh"

namespace vcas::VCAS_DEVICE {

template <class P, class T, bool kAligned>
__global__ void pointwise_forward_kernel(T* y, Compute<T>* y_norm, const T* x, std::int64_t rows,
                                         int width) {
  const std::int64_t r = row_of_writer();
  write_row<kAligned>(
      y, y_norm, r, width,
      [&](int c) {
        auto of = load_neighbours<kAligned>(x + r * width, c, width);
        VCAS_UNROLL
        for (int i = 0; i < kNeighbours; ++i) of.value[i] = P::template value<Math>(of.value[i]);
        return of;
      },
      r < rows);
}

template <class P, class T, bool kAligned>
__global__ void pointwise_backward_kernel(T* dx, Compute<T>* dx_norm, const T* dy,
                                          const T* saved_full, const std::int32_t* row,
                                          std::int64_t rows, int width) {
  const std::int64_t r = row_of_writer();
  const bool inside = r < rows;
  const T* const saved_row = saved_full + (inside ? at(row, r) : 0) * width;
  write_row<kAligned>(
      dx, dx_norm, r, width,
      [&](int c) {
        auto of = load_neighbours<kAligned>(dy + r * width, c, width);
        const auto saved = load_neighbours<kAligned>(saved_row, c, width);
        for (int i = 0; i < kNeighbours; ++i)
          of.value[i] = of.value[i] * P::template slope<Math>(saved.value[i]);
        return of;
      },
      inside);
}

template <class T, bool kAligned>
__global__ void dropout_kernel(T* y, Compute<T>* y_norm, const T* x, const T* residual,
                               const std::int32_t* row, std::int64_t rows, int width,
                               RowDropout<Compute<T>> dropout) {
  const std::int64_t r = row_of_writer();
  const bool inside = r < rows;
  RowMask<Compute<T>> mask(dropout, inside ? at(row, r) : 0, width);
  write_row<kAligned>(
      y, y_norm, r, width,
      [&](int c) {
        auto of = load_neighbours<kAligned>(x + r * width, c, width);
        mask.apply(of, c);
        if (residual) {
          const auto added = load_neighbours<kAligned>(residual + r * width, c, width);
          for (int i = 0; i < kNeighbours; ++i) of.value[i] += added.value[i];
        }
        return of;
      },
      inside);
}

template <class T>
__global__ void add_kernel(T* y, const T* a, const T* b, std::int64_t n) {
  for_each_neighbours(n, [&](std::int64_t first, int count) {
    auto sum = load_neighbours(a + first, 0, count);
    const auto added = load_neighbours(b + first, 0, count);
    for (int i = 0; i < kNeighbours; ++i) sum.value[i] += added.value[i];
    store_neighbours(y + first, 0, count, sum);
  });
}

// From row *from on, if that is given.
template <class T>
__global__ void fill_kernel(T* y, T value, const std::int64_t* from, std::int64_t width,
                            std::int64_t n) {
  const std::int64_t first = from ? *from * width : 0;
  for_each_element(n - first, [&](std::int64_t i) { y[first + i] = value; });
}

// Parameters, and what layers read of them where that is rounded.
template <bool kAligned = false, class T>
__device__ void store_updated(T* param, bfloat16* rounded, std::int64_t first, int count,
                              const Neighbours<T>& updated) {
  store_neighbours<kAligned>(param + first, 0, count, updated);
  if (!rounded) return;
  Neighbours<float> narrow;
  for (int i = 0; i < kNeighbours; ++i) narrow.value[i] = static_cast<float>(updated.value[i]);
  store_neighbours<kAligned>(rounded + first, 0, count, narrow);
}

// Threads have up to 40 registers then, which is enough for parameters that are aligned.
constexpr unsigned kAdamBlocksAtOnce = 6;

// 28 bytes a parameter in f32, and 2 where it has a rounded copy.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads, kAligned ? kAdamBlocksAtOnce : 1)
    adam_step_kernel(T* param, bfloat16* rounded, T* first_moment, T* second_moment, const T* grad,
                     const double* clip_factor, std::int64_t n, std::int64_t decayed,
                     AdamFactors<T> f) {
  if (!is_usable(*clip_factor)) return;
  const T grad_scale = static_cast<T>(*clip_factor);
  for_each_neighbours(n, [&](std::int64_t first, int count) {
    auto p = load_neighbours<kAligned>(param + first, 0, count);
    auto m = load_neighbours<kAligned>(first_moment + first, 0, count);
    auto v = load_neighbours<kAligned>(second_moment + first, 0, count);
    const auto gradient = load_neighbours<kAligned>(grad + first, 0, count);
    for (int i = 0; i < kNeighbours; ++i) {
      const bool decays = first + i < decayed;
      const T g = grad_scale * gradient.value[i] + (decays ? f.decay : T(0)) * p.value[i];
      m.value[i] += f.gain1 * (g - m.value[i]);
      v.value[i] += f.gain2 * (g * g - v.value[i]);
      const T step =
          m.value[i] * f.first_correction / (square_root(v.value[i] * f.second_correction) + f.eps);
      p.value[i] = (decays ? f.shrink : T(1)) * p.value[i] - f.learning_rate * step;
    }
    store_neighbours<kAligned>(first_moment + first, 0, count, m);
    store_neighbours<kAligned>(second_moment + first, 0, count, v);
    store_updated<kAligned>(param, rounded, first, count, p);
  });
}

template <class T>
__global__ void sgd_step_kernel(T* param, bfloat16* rounded, T* momentum, const T* grad,
                                const double* clip_factor, std::int64_t n, std::int64_t decayed,
                                T learning_rate, T mu, T weight_decay, bool nesterov) {
  if (!is_usable(*clip_factor)) return;
  const T grad_scale = static_cast<T>(*clip_factor);
  for_each_neighbours(n, [&](std::int64_t first, int count) {
    auto p = load_neighbours(param + first, 0, count);
    auto m = load_neighbours(momentum + first, 0, count);
    const auto gradient = load_neighbours(grad + first, 0, count);
    for (int i = 0; i < kNeighbours; ++i) {
      const T decay = first + i < decayed ? weight_decay : T(0);
      const T g = grad_scale * gradient.value[i] + decay * p.value[i];
      m.value[i] = mu * m.value[i] + g;
      p.value[i] -= learning_rate * (nesterov ? g + mu * m.value[i] : m.value[i]);
    }
    store_neighbours(momentum + first, 0, count, m);
    store_updated(param, rounded, first, count, p);
  });
}

// The last block to end adds up part[block], the sums of squares of each block's share.
template <class T>
__global__ void sum_squares_kernel(double* total, double* part, unsigned* count, const T* x,
                                   std::int64_t n, const double* earlier, bool accumulate) {
  double sum = 0;
  for_each_neighbours(n, [&](std::int64_t first, int neighbours) {
    for (const auto value : load_neighbours(x + first, 0, neighbours).value) sum += squared(value);
  });
  sum = block_sum(sum);
  if (threadIdx.x == 0) part[blockIdx.x] = sum;
  if (!ends_last(count, gridDim.x)) return;
  sum = 0;
  for (unsigned block = threadIdx.x; block < gridDim.x; block += blockDim.x) sum += part[block];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *total = sum + (earlier ? 0 * *earlier : 0) + (accumulate ? *total : 0);
}

// One thread.
__global__ void clip_factor_kernel(double* factor, double* predicted, const double* squared_norm,
                                   double max_norm) {
  *factor = clip_factor(*squared_norm, max_norm, predicted);
}

// ---- host ----

template <class P>
void forward(Context& context, const PointwiseForward<P>& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    with_aligned<T>({&args.y, &args.x}, [&](auto aligned) {
      launch(context, grid_of_writers(args.y), pointwise_forward_kernel<P, T, aligned>,
             args.y.template ptr<T>(), args.y_norm.template ptr<Compute<T>>(),
             args.x.template ptr<T>(), args.y.rows(), width_of(args.y));
    });
  });
}

template <class P>
void backward(Context& context, const PointwiseBackward<P>& args) {
  with_type(args.dx.dtype, [&](auto type) {
    using T = decltype(type);
    with_aligned<T>({&args.dx, &args.dy, &args.saved_full}, [&](auto aligned) {
      launch(context, grid_of_writers(args.dx), pointwise_backward_kernel<P, T, aligned>,
             args.dx.template ptr<T>(), args.dx_norm.template ptr<Compute<T>>(),
             args.dy.template ptr<T>(), args.saved_full.template ptr<T>(),
             args.row.template ptr<std::int32_t>(), args.dx.rows(), width_of(args.dx));
    });
  });
}

#define VCAS_COMPUTE(_, P)                                                                    \
  void compute(Context& context, const PointwiseForward<P>& args) { forward(context, args); } \
  void compute(Context& context, const PointwiseBackward<P>& args) { backward(context, args); }
VCAS_FOR_EACH_POINTWISE(VCAS_COMPUTE, )
#undef VCAS_COMPUTE

void compute(Context& context, const Dropout& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    with_aligned<T>({&args.y, &args.x, &args.residual}, [&](auto aligned) {
      launch(context, grid_of_writers(args.y), dropout_kernel<T, aligned>, args.y.ptr<T>(),
             args.y_norm.ptr<Compute<T>>(), args.x.ptr<T>(), args.residual.ptr<T>(),
             args.row.ptr<std::int32_t>(), args.y.rows(), width_of(args.y),
             row_dropout<Compute<T>>(args.p, step_key(args)));
    });
  });
}

void compute(Context& context, const Add& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t n = args.y.elements();
    launch(context, grid_over_neighbours(context, n), add_kernel<T>, args.y.ptr<T>(),
           args.a.ptr<T>(), args.b.ptr<T>(), n);
  });
}

void compute(Context& context, const Copy& args) {
  context.copy(args.y.data, args.x.data, args.y.bytes());
}

void compute(Context& context, const Fill& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t n = args.y.elements();
    launch(context, grid_over(context, n), fill_kernel<T>, args.y.ptr<T>(),
           static_cast<T>(static_cast<Compute<T>>(args.value)), args.from.ptr<std::int64_t>(),
           args.y.width(), n);
  });
}

void compute(Context& context, const AdamStep& args) {
  with_statistics_type(args.param.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t n = args.param.elements();
    with_aligned<T>(
        {&args.param, &args.rounded, &args.first_moment, &args.second_moment, &args.grad},
        [&](auto aligned) {
          launch(context, grid_over_neighbours(context, n, kAdamBlocksAtOnce),
                 adam_step_kernel<T, aligned>, args.param.ptr<T>(), args.rounded.ptr<bfloat16>(),
                 args.first_moment.ptr<T>(), args.second_moment.ptr<T>(), args.grad.ptr<T>(),
                 args.clip_factor.ptr<double>(), n, args.decayed, adam_factors<T>(args));
        });
  });
}

void compute(Context& context, const SgdStep& args) {
  with_statistics_type(args.param.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t n = args.param.elements();
    launch(context, grid_over_neighbours(context, n), sgd_step_kernel<T>, args.param.ptr<T>(),
           args.rounded.ptr<bfloat16>(), args.momentum.ptr<T>(), args.grad.ptr<T>(),
           args.clip_factor.ptr<double>(), n, args.decayed, static_cast<T>(args.learning_rate),
           static_cast<T>(args.mu), static_cast<T>(args.weight_decay), args.nesterov);
  });
}

void compute(Context& context, const SumSquares& args) {
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t n = args.x.elements();
    const Grid grid = grid_over_neighbours(context, std::max<std::int64_t>(n, 1));
    launch(context, grid, sum_squares_kernel<T>, args.sum.ptr<double>(),
           scratch<double>(context, grid.blocks.x), context.counts(1), args.x.ptr<T>(), n,
           args.earlier.ptr<double>(), args.accumulate);
  });
}

void compute(Context& context, const ClipFactor& args) {
  launch(context, Grid{extent(1), extent(1)}, clip_factor_kernel, args.factor.ptr<double>(),
         args.predicted.ptr<double>(), args.squared_norm.ptr<double>(), args.max_norm);
}

}  // namespace vcas::VCAS_DEVICE
