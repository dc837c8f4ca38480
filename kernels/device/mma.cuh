// What kernels on tensor cores share.
#pragma once

#include "kernels/device/launch.cuh"

namespace vcas::VCAS_DEVICE {

// What is copied at once.
template <class T>
struct alignas(16) Chunk {
  static constexpr int kSize = 16 / sizeof(T);
  T value[kSize];
};

inline bool lies_on_chunk(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % sizeof(Chunk<float>) == 0;
}

__device__ inline float float_of(std::uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// The numbers of a pair of bf16.
__device__ inline float low_bf16(std::uint32_t pair) { return float_of(pair << 16); }
__device__ inline float high_bf16(std::uint32_t pair) { return float_of(pair & 0xFFFF0000u); }

}  // namespace vcas::VCAS_DEVICE
