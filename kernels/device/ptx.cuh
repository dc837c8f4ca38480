// One function for each PTX instruction in use, with what the emulator does in its place.
#pragma once

#if defined(__CUDACC__)
#include <cuda_runtime.h>

#include <cstdint>
#else
#include <bit>
#include <cstring>

#include "core/bfloat16.h"
#include "kernels/emu/emulator.h"
#include "kernels/emu/tensor_core.h"
#endif

#if defined(__CUDACC__)
namespace vcas::cuda {

// Starts to copy *from, of 4 or 16 bytes and as aligned, into shared memory; zeros if not `inside`,
// but `from` is an address of the device even then.
template <class T>
__device__ __forceinline__ void copy_async(T* to, const T* from, bool inside) {
  static_assert(sizeof(T) == 4 || (sizeof(T) == 16 && alignof(T) == 16));
  const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  const std::uint32_t bytes = inside ? sizeof(T) : 0;
  if constexpr (sizeof(T) == 16)  // past the L1 cache
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from),
                 "r"(bytes)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(from), "r"(bytes)
                 : "memory");
}
// This thread's copies since the last call become a group, perhaps an empty one.
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits for this thread's groups, but for its last `kGroups`. Other threads need a barrier besides.
template <int kGroups>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// x as TF32, the nearest, ties away from zero.
__device__ __forceinline__ std::uint32_t to_tf32(float x) {
  std::uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

// c[16, 8] += a[16, 8] b[8, 8] by the 32 lanes of a warp. Lane 4g + t holds a(g, t), a(g+8, t),
// a(g, t+4), a(g+8, t+4); b(t, g), b(t+4, g); c(g, 2t), c(g, 2t+1), c(g+8, 2t), c(g+8, 2t+1).
__device__ __forceinline__ void mma_tf32(float (&c)[4], const std::uint32_t (&a)[4],
                                         const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four blocks of 8 x 8 numbers of 16 bits from shared memory: lane 8m + r gives the address of row
// r of block m, 16 bytes as aligned, and lane 4g + t gets entries (g, 2t) and (g, 2t+1) of block m
// as the low and the high half of out[m].
__device__ __forceinline__ void load_blocks(std::uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}
// Likewise, transposed: entries (2t, g) and (2t+1, g).
__device__ __forceinline__ void load_blocks_transposed(std::uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

// Two numbers as bf16, the nearest, ties to even: the low and the high half.
__device__ __forceinline__ std::uint32_t to_bf16_pair(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// c[16, 8] += a[16, 16] b[16, 8] by the 32 lanes of a warp, of pairs of bf16. Lane 4g + t holds
// a(g, 2t..), a(g+8, 2t..), a(g, 2t+8..), a(g+8, 2t+8..); b(2t.., g), b(2t+8.., g); c as mma_tf32.
__device__ __forceinline__ void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4],
                                         const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace vcas::cuda

#else
namespace vcas::emu {

// A copy lands as late as it may, and until then nothing is known of its destination: bytes that
// read as NaN are written there at once.
template <class T>
void copy_async(T* to, const T* from, bool inside, const char* file = __builtin_FILE(),
                int line = __builtin_LINE()) {
  static_assert(sizeof(T) == 4 || (sizeof(T) == 16 && alignof(T) == 16));
  const auto land = [](void* destination, const void* source) {
    *static_cast<T*>(destination) = source ? *static_cast<const T*>(source) : T{};
  };
  Emulator::current().check(reinterpret_cast<std::uintptr_t>(to) % sizeof(T) == 0 &&
                                reinterpret_cast<std::uintptr_t>(from) % sizeof(T) == 0,
                            "an asynchronous copy of a misaligned address", {file, line});
  Emulator::current().copy_async({to, inside ? from : nullptr, land}, {file, line});
  T unknown;
  std::memset(static_cast<void*>(&unknown), 0xFF, sizeof unknown);
  *to = unknown;
}
inline void copy_async_commit() { Emulator::current().copy_async_commit(); }
template <int kGroups>
void copy_async_wait(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  Emulator::current().copy_async_wait(kGroups, {file, line});
}

inline std::uint32_t to_tf32(float x) { return std::bit_cast<std::uint32_t>(round_to_tf32(x)); }

inline void mma_tf32(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                     const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const MmaLane own{a, b, c};
  Emulator::current().warp_work(mma_m16n8k8_tf32, &own, {file, line});
}

inline void load_blocks(WarpWork load, std::uint32_t (&out)[4], const void* row, Place place) {
  Emulator::current().check(reinterpret_cast<std::uintptr_t>(row) % 16 == 0,
                            "a block's row at a misaligned address", place);
  std::uint32_t words[4];
  std::memcpy(words, row, sizeof words);  // here, where the thread sanitizer looks
  const LdmatrixLane own{words, out};
  Emulator::current().warp_work(load, &own, place);
}
inline void load_blocks(std::uint32_t (&out)[4], const void* row,
                        const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  load_blocks(ldmatrix_x4, out, row, {file, line});
}
inline void load_blocks_transposed(std::uint32_t (&out)[4], const void* row,
                                   const char* file = __builtin_FILE(),
                                   int line = __builtin_LINE()) {
  load_blocks(ldmatrix_x4_trans, out, row, {file, line});
}

inline std::uint32_t to_bf16_pair(float low, float high) {
  return bfloat16(low).bits() | static_cast<std::uint32_t>(bfloat16(high).bits()) << 16;
}

inline void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                     const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const MmaLane own{a, b, c};
  Emulator::current().warp_work(mma_m16n8k16_bf16, &own, {file, line});
}

}  // namespace vcas::emu
#endif
