// Functions of the library by one name for float and double.
#pragma once

#include <cmath>

#include "kernels/device/port.cuh"

namespace vcas::VCAS_DEVICE {

__device__ inline float gauss_error_complement(float x) { return erfcf(x); }
__device__ inline double gauss_error_complement(double x) { return erfc(x); }
__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }
__device__ inline float natural_log(float x) { return logf(x); }
__device__ inline double natural_log(double x) { return log(x); }
__device__ inline float hyperbolic_tangent(float x) { return tanhf(x); }
__device__ inline double hyperbolic_tangent(double x) { return tanh(x); }
__device__ inline float square_root(float x) { return sqrtf(x); }
__device__ inline double square_root(double x) { return sqrt(x); }

template <class T>
__device__ T infinity() {
  return static_cast<T>(INFINITY);
}

}  // namespace vcas::VCAS_DEVICE
