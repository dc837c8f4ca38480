// Chunks of 16 bytes, and pairs of bf16.
#pragma once

#include "kernels/device/launch.cuh"

namespace vcas::VCAS_DEVICE {

// What is copied at once.
template <class T>
struct alignas(16) Chunk {
  static constexpr int kSize = 16 / sizeof(T);
  T value[kSize];
};

__host__ __device__ inline bool lies_on_chunk(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % sizeof(Chunk<float>) == 0;
}

// In words, or its numbers would be loaded one by one.
template <class T>
__device__ Chunk<T> load_chunk(const T* from) {
  struct alignas(16) [[gnu::may_alias]] Bits {
    std::uint32_t word[4];
  };
  const Bits bits = *reinterpret_cast<const Bits*>(from);
  Chunk<T> chunk;
  memcpy(static_cast<void*>(&chunk), &bits, sizeof chunk);
  return chunk;
}

// For numbers as they were computed.
template <class T>
__device__ Chunk<T> to_chunk(const Compute<T> (&values)[Chunk<T>::kSize]) {
  Chunk<T> chunk;
  if constexpr (sizeof(T) == 2) {
    std::uint32_t pair[Chunk<T>::kSize / 2];
    for (int i = 0; i < Chunk<T>::kSize / 2; ++i)
      pair[i] = to_bf16_pair(values[2 * i], values[2 * i + 1]);
    memcpy(static_cast<void*>(&chunk), pair, sizeof chunk);
  } else {
    for (int i = 0; i < Chunk<T>::kSize; ++i) chunk.value[i] = values[i];
  }
  return chunk;
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
