// All that differs between nvcc and the host compiler. The .cuh of this folder are compiled by
// both, into the namespaces vcas::cuda and vcas::emu.
#pragma once

#include "core/philox.h"
#include "core/tensor.h"
#include "kernels/device/ptx.cuh"

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#include <curand_kernel.h>

#include "kernels/cuda/context.h"

#define VCAS_DEVICE cuda

// `name` is memory that the threads of a block share.
#define VCAS_SHARED(Type, name) __shared__ Type name
// A pointer to the shared memory whose size the launch gives, aligned as wgmma wants its matrices.
#define VCAS_DYNAMIC_SHARED(Type, name)                                  \
  extern __shared__ __align__(1024) unsigned char vcas_dynamic_shared[]; \
  Type* const name = reinterpret_cast<Type*>(vcas_dynamic_shared)
// Before a loop over arrays that are to lie in registers, where its body is long.
#define VCAS_UNROLL _Pragma("unroll")
// Before a loop whose code runs once: to fetch it may take longer than to branch.
#define VCAS_PRAGMA(text) _Pragma(#text)
#define VCAS_UNROLL_BY(count) VCAS_PRAGMA(unroll(count))
#define VCAS_NO_UNROLL VCAS_UNROLL_BY(1)
// Stops the kernel; the emulator also says where and why.
#define VCAS_KERNEL_CHECK(condition, text) \
  do {                                     \
    if (!(condition)) __trap();            \
  } while (false)

namespace vcas::cuda {

struct Words {
  std::uint32_t word[4];
};

// base + offset, with kOnce computed here once: nvcc does not see of what. Loads and stores then
// add offsets that it knows by themselves. Else it may compute each address anew, by several
// instructions. Where there is no base the address is not to be used.
template <bool kOnce, class T>
__device__ __forceinline__ T* computed_once(T* base, std::int64_t offset = 0) {
  T* p = base + offset;
  if constexpr (kOnce) asm("" : "+l"(p));
  return p;
}

// What has been computed of x is computed again: nvcc does not see that it is still the same. Else
// it may keep that in registers, which are more than those of x.
__device__ __forceinline__ void forget(std::uint32_t& x) { asm volatile("" : "+r"(x)); }

__device__ inline Words philox_words(const PhiloxAddress& address, std::uint64_t index) {
  const uint4 counter = make_uint4(static_cast<unsigned>(index), static_cast<unsigned>(index >> 32),
                                   address.high0, address.high1);
  const uint4 out = curand_Philox4x32_10(counter, make_uint2(address.key0, address.key1));
  return {{out.x, out.y, out.z, out.w}};
}

}  // namespace vcas::cuda

#else
#include "kernels/emu/context.h"
#include "kernels/emu/simt.h"

#define VCAS_DEVICE emu

#define VCAS_SHARED(Type, name)     \
  static const char name##_site{};  \
  Type& name = *static_cast<Type*>( \
      Emulator::current().shared(&name##_site, sizeof(Type), {__FILE__, __LINE__}))
#define VCAS_DYNAMIC_SHARED(Type, name) \
  Type* const name = static_cast<Type*>(Emulator::current().dynamic_shared())
#define VCAS_UNROLL
#define VCAS_UNROLL_BY(count)
#define VCAS_NO_UNROLL
#define VCAS_KERNEL_CHECK(condition, text) \
  Emulator::current().check((condition), text, {__FILE__, __LINE__})

namespace vcas::emu {

struct Words {
  std::uint32_t word[4];
};

template <bool kOnce, class T>
T* computed_once(T* base, std::int64_t offset = 0) {
  return base ? base + offset : base;
}

inline void forget(std::uint32_t&) {}

inline Words philox_words(const PhiloxAddress& address, std::uint64_t index) {
  Words out;
  philox_draw(address, index, out.word);
  return out;
}

}  // namespace vcas::emu
#endif

namespace vcas::VCAS_DEVICE {

// With keys among the arguments of the kernel: no round has to make them.
__device__ inline Words philox_words(const PhiloxAddress& address, const PhiloxKeys& keys,
                                     std::uint64_t index) {
  Words out;
  philox_draw(address, keys, index, out.word);
  return out;
}

}  // namespace vcas::VCAS_DEVICE
