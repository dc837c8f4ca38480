// Functions of the library by one name for float and double.
#pragma once

#include <cmath>

#include "core/host_device.h"
#include "kernels/device/port.cuh"

namespace vcas::VCAS_DEVICE {

VCAS_HOST_DEVICE inline float exponential(float x) { return expf(x); }
VCAS_HOST_DEVICE inline double exponential(double x) { return exp(x); }
__device__ inline float natural_log(float x) { return logf(x); }
__device__ inline double natural_log(double x) { return log(x); }
// a b, rounded also where a sum follows: nvcc would fuse the two.
#if defined(__CUDACC__)
__device__ inline float rounded_product(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double rounded_product(double a, double b) { return __dmul_rn(a, b); }
#else
template <class T>
T rounded_product(T a, T b) {
  return a * b;
}
#endif
__device__ inline float square_root(float x) { return sqrtf(x); }
__device__ inline double square_root(double x) { return sqrt(x); }

// Phi(x), and exp(-x^2/2) on the way. Phi(-|x|) = t Q(t) exp(-x^2/2) with t = 1 / (1 + 0.305 |x|).
// Q has the least relative error of its degree on |x| <= 14, which is 1e-7.
struct QuickNormal {
  float cdf, bell;

  VCAS_HOST_DEVICE explicit QuickNormal(float x) {
    const float t = reciprocal_approximately(1 + 0.305f * fabsf(x));
    float q = 0.036638860f;
    q = q * t - 0.15274607f;
    q = q * t + 0.18531488f;
    q = q * t - 0.037620638f;
    q = q * t + 0.12084038f;
    q = q * t + 0.10347370f;
    q = q * t + 0.12245868f;
    q = q * t + 0.12164024f;
    bell = exp2_approximately(x * (-0.72134752f * x));
    const float tail = q * t * bell;
    cdf = x > 0 ? 1 - tail : tail;
  }
};

// The functions M of kernels/ops/pointwise.h.
struct Math {
  template <class T>
  VCAS_HOST_DEVICE static T exp_negative(T x) {
    return exponential(x);
  }
  VCAS_HOST_DEVICE static float tanh(float x) { return tanhf(x); }
  VCAS_HOST_DEVICE static double tanh(double x) { return ::tanh(x); }
  VCAS_HOST_DEVICE static float normal_cdf(float x) { return QuickNormal(x).cdf; }
  VCAS_HOST_DEVICE static double normal_cdf(double x) {
    return 0.5 * erfc(x * -0.70710678118654752440);
  }
  VCAS_HOST_DEVICE static float gelu_slope(float x) {
    const QuickNormal normal(x);
    return normal.cdf + x * (0.39894228f * normal.bell);
  }
  VCAS_HOST_DEVICE static double gelu_slope(double x) {
    return normal_cdf(x) + x * (0.39894228040143267794 * exp(-0.5 * x * x));
  }
};

template <class T>
__device__ T infinity() {
  return static_cast<T>(INFINITY);
}

}  // namespace vcas::VCAS_DEVICE
