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
__device__ inline float square_root(float x) { return sqrtf(x); }
__device__ inline double square_root(double x) { return sqrt(x); }

// The functions M of kernels/ops/pointwise.h.
struct Math {
  template <class T>
  VCAS_HOST_DEVICE static T exp_negative(T x) {
    return exponential(x);
  }
  VCAS_HOST_DEVICE static float tanh(float x) { return tanhf(x); }
  VCAS_HOST_DEVICE static double tanh(double x) { return ::tanh(x); }
  VCAS_HOST_DEVICE static float erfc(float x) { return erfcf(x); }
  VCAS_HOST_DEVICE static double erfc(double x) { return ::erfc(x); }
  template <class T>
  VCAS_HOST_DEVICE static T normal_cdf(T x) {
    return T(0.5) * erfc(x * T(-0.70710678118654752440));
  }
  template <class T>
  VCAS_HOST_DEVICE static T gelu_slope(T x) {
    const T density = T(0.39894228040143267794) * exponential(T(-0.5) * x * x);
    return normal_cdf(x) + x * density;
  }
};

template <class T>
__device__ T infinity() {
  return static_cast<T>(INFINITY);
}

}  // namespace vcas::VCAS_DEVICE
