// Dense products: by the platform's library, or by a plain kernel where that has none.
#pragma once

#include "kernels/cpu/gemm.h"
#include "kernels/device/launch.cuh"

namespace vcas::VCAS_DEVICE {

// A thread for each of n columns in each row of c.
template <class T, class Out>
__global__ void plain_product_kernel(Out* c, Factor<T> a, Factor<T> b, const Out* bias,
                                     bool accumulate, std::int64_t n, std::int64_t k,
                                     std::int64_t elements) {
  using C = Compute<T>;
  const std::int64_t a_step = a.transposed ? a.stride : 1, b_step = b.transposed ? 1 : b.stride;
  for_each_element(elements, [&](std::int64_t i) {
    const std::int64_t row = i / n, column = i % n;
    const T* left = a.data + row * (a.transposed ? 1 : a.stride);
    const T* right = b.data + column * (b.transposed ? b.stride : 1);
    C sum = accumulate ? static_cast<C>(c[i]) : bias ? static_cast<C>(bias[column]) : C(0);
    for (std::int64_t p = 0; p < k; ++p)
      sum += static_cast<C>(left[p * a_step]) * static_cast<C>(right[p * b_step]);
    c[i] = static_cast<Out>(sum);
  });
}

// c[r] = bias in each row r. One thread an entry.
template <class Out>
__global__ void repeat_row_kernel(Out* c, const Out* bias, std::int64_t n, std::int64_t elements) {
  for_each_element(elements, [&](std::int64_t i) { c[i] = bias[i % n]; });
}

// As Context::gemm, for all shapes.
template <class T, class Out>
void dense_product(Context& context, std::int64_t m, std::int64_t n, std::int64_t k,
                   const Factor<T>& a, const Factor<T>& b, Out* c, bool accumulate,
                   const Out* bias = nullptr) {
  // Where rows do not lie on 16 bytes, cuBLASLt rounds a sum before it adds the bias.
  if constexpr (sizeof(Out) == 2)
    if (bias && !accumulate && (a.stride % 8 != 0 || b.stride % 8 != 0 || n % 8 != 0)) {
      launch(context, grid_over(context, m * n), repeat_row_kernel<Out>, c, bias, n, m * n);
      bias = nullptr;
      accumulate = true;
    }
  if (context.gemm<T, Out>(m, n, k, a, b, c, accumulate, bias)) return;
  launch(context, grid_over(context, m * n), plain_product_kernel<T, Out>, c, a, b, bias,
         accumulate, n, k, m * n);
}

}  // namespace vcas::VCAS_DEVICE
