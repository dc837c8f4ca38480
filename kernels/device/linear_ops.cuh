// Linear layers: dense products by the platform's library, products over gathered rows here.
#pragma once

#include "kernels/cpu/gemm.h"
#include "kernels/device/launch.cuh"

namespace vcas::VCAS_DEVICE {

// y[r] = value, one bias in every row.
template <class T>
__global__ void fill_rows_kernel(T* y, const T* value, std::int64_t n, std::int64_t width) {
  for_each_element(n, [&](std::int64_t i) { y[i] = value[i % width]; });
}

// One factor of a gathered product: entry (k, c) is data[row(k)][column(c)].
template <class T>
struct Gathered {
  const T* data;
  std::int64_t stride;
  const std::int32_t* kept;    // k -> compact row, null: itself
  const std::int32_t* row;     // compact row -> row of data, null: itself
  const std::int32_t* column;  // c -> column of data, null: itself
  std::int64_t width;          // how many c

  __device__ std::int64_t row_of(std::int64_t k) const { return at(row, at(kept, k)) * stride; }
};

constexpr int kTile = 64, kDepth = 16, kPerThread = 4;
constexpr int kTileThreads = (kTile / kPerThread) * (kTile / kPerThread);

template <class T>
struct Panel {
  T value[kDepth][kTile];
};

// panel[k][c] = scale[k] * entry (first_k + k, first_c + c), zero outside.
template <class T>
__device__ void load_panel(Panel<T>& panel, const Gathered<T>& from, const T* scale,
                           std::int64_t first_k, std::int64_t count, std::int64_t first_c) {
  for (int i = static_cast<int>(threadIdx.x); i < kDepth * kTile; i += kTileThreads) {
    const std::int64_t k = first_k + i / kTile, c = first_c + i % kTile;
    T value = 0;
    if (k < count && c < from.width) {
      value = from.data[from.row_of(k) + at(from.column, c)];
      if (scale) value *= scale[k];
    }
    panel.value[i / kTile][i % kTile] = value;
  }
}

// c[i, j] (+)= sum over k < depth of scale[k] a(k, i) b(k, j): weight gradients of kept rows. Rows
// are gathered, and scaled, on their way into shared memory. A block owns a tile of 64 x 64 entries
// and goes over k from 0 on, 16 rows at a time, so every sum has one order; a thread owns 4 x 4.
template <class T>
__global__ void __launch_bounds__(kTileThreads)
    gathered_product_kernel(T* c, Gathered<T> a, Gathered<T> b, const T* scale, std::int64_t depth,
                            bool accumulate) {
  struct Shared {
    Panel<T> a, b;
  };
  VCAS_SHARED(Shared, shared);
  const std::int64_t first_i = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t first_j = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const int own_i = static_cast<int>(threadIdx.x) / (kTile / kPerThread);
  const int own_j = static_cast<int>(threadIdx.x) % (kTile / kPerThread);
  T sum[kPerThread][kPerThread] = {};
  for (std::int64_t k = 0; k < depth; k += kDepth) {
    load_panel(shared.a, a, scale, k, depth, first_i);
    load_panel<T>(shared.b, b, nullptr, k, depth, first_j);
    __syncthreads();
    for (int d = 0; d < kDepth; ++d)
      for (int i = 0; i < kPerThread; ++i)
        for (int j = 0; j < kPerThread; ++j)
          sum[i][j] += shared.a.value[d][own_i + i * (kTile / kPerThread)] *
                       shared.b.value[d][own_j + j * (kTile / kPerThread)];
    __syncthreads();
  }
  for (int i = 0; i < kPerThread; ++i)
    for (int j = 0; j < kPerThread; ++j) {
      const std::int64_t row = first_i + own_i + i * (kTile / kPerThread);
      const std::int64_t column = first_j + own_j + j * (kTile / kPerThread);
      if (row >= a.width || column >= b.width) continue;
      T& out = c[row * b.width + column];
      out = accumulate ? out + sum[i][j] : sum[i][j];
    }
}

template <class T>
void gathered_product(Context& context, T* c, const Gathered<T>& a, const Gathered<T>& b,
                      const T* scale, std::int64_t depth, bool accumulate) {
  launch(context,
         {extent(ceil_div(b.width, kTile), ceil_div(a.width, kTile)), extent(kTileThreads)},
         gathered_product_kernel<T>, c, a, b, scale, depth, accumulate);
}

// ---- host ----

inline void check_shapes(const Tensor& y, const Tensor& x, const Tensor& weight) {
  VCAS_CHECK(y.rows() == x.rows() && weight.shape == (Shape{y.width(), x.width()}),
             "shapes " + y.shape.text() + ", " + x.shape.text() + ", " + weight.shape.text());
}

void compute(Context& context, const LinearForward& args) {
  check_shapes(args.y, args.x, args.weight);
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t c = args.x.width(), d = args.y.width(), n = args.y.elements();
    T* y = args.y.ptr<T>();
    if (args.bias)
      launch(context, grid_over(context, n), fill_rows_kernel<T>, y, args.bias.ptr<T>(), n, d);
    context.gemm<T>(args.y.rows(), d, c, {args.x.ptr<T>(), c}, {args.weight.ptr<T>(), c, true}, y,
                    bool{args.bias});
  });
}

void compute(Context& context, const LinearBackwardInput& args) {
  check_shapes(args.dy, args.dx, args.weight);
  with_type(args.dx.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t c = args.dx.width(), d = args.dy.width();
    context.gemm<T>(args.dx.rows(), c, d, {args.dy.ptr<T>(), d}, {args.weight.ptr<T>(), c},
                    args.dx.ptr<T>(), args.accumulate);
  });
}

void compute(Context& context, const LinearBackwardWeight& args) {
  const std::int64_t d = args.dweight.shape[0], c = args.dweight.shape[1];
  VCAS_CHECK(args.dy.width() == d && args.x_full.width() == c,
             "shapes " + args.dweight.shape.text() + ", " + args.dy.shape.text() + ", " +
                 args.x_full.shape.text());
  with_type(args.dweight.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* row = args.row.ptr<std::int32_t>();
    const auto* kept = args.kept.ptr<std::int32_t>();
    const T* dy = args.dy.ptr<T>();
    const T* x = args.x_full.ptr<T>();
    if (!row && !kept)
      return context.gemm<T>(d, c, args.dy.rows(), {dy, d, true}, {x, c}, args.dweight.ptr<T>(),
                             true);
    gathered_product<T>(context, args.dweight.ptr<T>(), {dy, d, kept, nullptr, nullptr, d},
                        {x, c, kept, row, nullptr, c}, args.scale.ptr<T>(),
                        kept ? args.kept.elements() : args.dy.rows(), true);
  });
}

void compute(Context& context, const LinearWeightBlock& args) {
  with_type(args.block.dtype, [&](auto type) {
    using T = decltype(type);
    gathered_product<T>(
        context, args.block.ptr<T>(),
        {args.dy.ptr<T>(), args.dy.width(), nullptr, nullptr, args.out_index.ptr<std::int32_t>(),
         args.out_index.elements()},
        {args.x_full.ptr<T>(), args.x_full.width(), nullptr, args.row.ptr<std::int32_t>(),
         args.in_index.ptr<std::int32_t>(), args.in_index.elements()},
        nullptr, args.dy.rows(), false);
  });
}

}  // namespace vcas::VCAS_DEVICE
