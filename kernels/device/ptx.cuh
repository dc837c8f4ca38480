// One function for each PTX instruction in use, with what the emulator does in its place.
#pragma once

#if defined(__CUDACC__)
#include <cuda_runtime.h>

#include <cstdint>
#else
#include <bit>
#include <cmath>
#include <cstring>

#include "core/bfloat16.h"
#include "kernels/emu/emulator.h"
#include "kernels/emu/tensor_core.h"
#endif

namespace vcas {
// Whether a factor's numbers lie side by side along the sum (k) or across it, as PTX counts them.
enum class Major { kK, kMn };
}  // namespace vcas

#if defined(__CUDACC__)
namespace vcas::cuda {

// Starts to copy *from, of 4 or 16 bytes and as aligned, into shared memory; zeros if not `inside`:
// then nothing is read.
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

// Four blocks of 8 x 8 numbers of 16 bits from shared memory. Lane 8m + r gives the address of row
// r of block m. A row has 16 bytes and lies on 16. Lane 4g + t gets entries (g, 2t) and (g, 2t+1)
// of block m, as the low and the high half of out[m].
__device__ __forceinline__ void load_blocks(std::uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}
// The same, transposed: entries (2t, g) and (2t+1, g).
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

// 1 / x and 2^x, off by 2^-22 of the result. Results below the normal range are 0. Functions that
// the host may call too call them, so they have a version for it.
__host__ __device__ __forceinline__ float reciprocal_approximately(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1 / x;
#endif
}
__host__ __device__ __forceinline__ float exp2_approximately(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
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

// Barrier 1 to 15 of a block, of so many of its threads, in whole warps. What a thread did before
// it arrives is seen by those that wait, as all do that `sync`. Barrier 0 is that of __syncthreads.
__device__ __forceinline__ void barrier_arrive(int barrier, int threads) {
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_sync(int barrier, int threads) {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Where in shared memory, as a matrix descriptor says it.
__device__ __forceinline__ std::uint32_t shared_address(const void* data) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(data));
}

// Counts up to `last`, then from 0 again: the count so far. A thread sees what those that have
// counted before it had seen.
__device__ __forceinline__ unsigned count_in_order(unsigned* count, unsigned last) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(count), "r"(last)
               : "memory");
  return before;
}

// The rest is of sm_90a only: elsewhere a kernel that comes to it stops.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define VCAS_SM90A(...) asm volatile(__VA_ARGS__)
#else
#define VCAS_SM90A(...) (__trap(), __builtin_unreachable())
#endif

#define VCAS_BLOCK(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define VCAS_EIGHT_BLOCKS(c, i)                                                       \
  VCAS_BLOCK(c, i), VCAS_BLOCK(c, i + 1), VCAS_BLOCK(c, i + 2), VCAS_BLOCK(c, i + 3), \
      VCAS_BLOCK(c, i + 4), VCAS_BLOCK(c, i + 5), VCAS_BLOCK(c, i + 6), VCAS_BLOCK(c, i + 7)

// A barrier in shared memory for copies that land. Each of its phases takes so many arrivals. A
// thread makes it, and a barrier of the block comes before its use.
__device__ __forceinline__ void mbarrier_init(std::uint64_t& barrier, int arrivals) {
  VCAS_SM90A("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)),
             "r"(arrivals)
             : "memory");
}
// Arrives as soon as all copies have landed that this thread has started. It does not wait, and
// says nothing of what the thread has written by itself.
__device__ __forceinline__ void copy_async_arrive(std::uint64_t& barrier) {
  VCAS_SM90A("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier))
             : "memory");
}
// Waits until the phase is over, the first of which have the parities 0, 1, 0. Then what has landed
// is seen.
__device__ __forceinline__ void mbarrier_wait(std::uint64_t& barrier, int parity) {
  for (std::uint32_t over = 0; !over;)
    VCAS_SM90A(
        "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, "
        "p;}"
        : "=r"(over)
        : "r"(shared_address(&barrier)), "r"(parity)
        : "memory");
}

// Makes two things in shared memory seen by wgmma: what this thread has written, and copies that it
// knows to have landed. That holds for wgmma that follows here, and for any behind the next
// barrier.
__device__ __forceinline__ void fence_async_proxy() {
  VCAS_SM90A("fence.proxy.async.shared::cta;" ::: "memory");
}

// A warpgroup gives registers up, or takes what others gave up, until its threads have so many: a
// multiple of 8. The launch bounds say how many they have before.
template <int kRegisters>
__device__ __forceinline__ void give_up_registers() {
  VCAS_SM90A("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  VCAS_SM90A("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// c and a are now as a wgmma that follows needs them: before every one, since a was written.
template <int kBlocks>
__device__ __forceinline__ void wgmma_fence(float (&c)[kBlocks][4], std::uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4 * kBlocks; ++i) asm volatile("" : "+f"(c[i / 4][i % 4])::"memory");
  asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
  VCAS_SM90A("wgmma.fence.sync.aligned;" ::: "memory");
}

// Starts c[64, 8 kBlocks] += a[64, 16] b[16, 8 kBlocks] by the 128 lanes of a warpgroup, of pairs
// of bf16. Warp w has rows 16w .. 16w+15: of a as mma_bf16, of c for each eight columns as there.
// b lies in shared memory, as kMajor and its matrix descriptor say. Neither a nor b may change, nor
// c be read, until it is waited for.
template <Major kMajor>
__device__ __forceinline__ void wgmma_bf16(float (&c)[8][4], const std::uint32_t (&a)[4],
                                           std::uint64_t b) {
  VCAS_SM90A(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, 1, 1, 1, %37;"
      : VCAS_EIGHT_BLOCKS(c, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(static_cast<int>(kMajor))
      : "memory");
}
template <Major kMajor>
__device__ __forceinline__ void wgmma_bf16(float (&c)[16][4], const std::uint32_t (&a)[4],
                                           std::uint64_t b) {
  VCAS_SM90A(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, 1, 1, 1, %69;"
      : VCAS_EIGHT_BLOCKS(c, 0), VCAS_EIGHT_BLOCKS(c, 8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(static_cast<int>(kMajor))
      : "memory");
}

template <Major kMajor>
__device__ __forceinline__ void wgmma_bf16(float (&c)[32][4], const std::uint32_t (&a)[4],
                                           std::uint64_t b) {
  VCAS_SM90A(
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
      "%127}, "
      "{%128, %129, %130, %131}, %132, 1, 1, 1, %133;"
      : VCAS_EIGHT_BLOCKS(c, 0), VCAS_EIGHT_BLOCKS(c, 8), VCAS_EIGHT_BLOCKS(c, 16),
        VCAS_EIGHT_BLOCKS(c, 24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(static_cast<int>(kMajor))
      : "memory");
}

// The warpgroup's products since the last call become a group.
__device__ __forceinline__ void wgmma_commit() {
  VCAS_SM90A("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits for the warpgroup's products of fragments a; then their sums c may be read, and a written.
//
// ptxas 13.0 takes the registers of a for free as soon as the products have started. So a store
// that never happens, of a block beyond the grid, reads them here.
template <int kBlocks, int kSteps>
__device__ __forceinline__ void wgmma_wait(float (&c)[kBlocks][4],
                                           const std::uint32_t (&a)[kSteps][4]) {
  VCAS_SM90A("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < 4 * kBlocks; ++i) asm volatile("" : "+f"(c[i / 4][i % 4])::"memory");
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    asm volatile(
        "{.reg .pred never; .reg .b32 z; mov.u32 z, %%ctaid.z; setp.ne.u32 never, z, 0;"
        "@never st.shared.v4.b32 [z], {%0, %1, %2, %3};}" ::"r"(a[i][0]),
        "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3])
        : "memory");
}

#undef VCAS_EIGHT_BLOCKS
#undef VCAS_BLOCK
#undef VCAS_SM90A

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
inline float reciprocal_approximately(float x) { return 1 / x; }
inline float exp2_approximately(float x) { return std::exp2(x); }

inline void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                     const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const MmaLane own{a, b, c};
  Emulator::current().warp_work(mma_m16n8k16_bf16, &own, {file, line});
}

inline std::uint32_t shared_address(const void* data, const char* file = __builtin_FILE(),
                                    int line = __builtin_LINE()) {
  return Emulator::current().shared_address(data, {file, line});
}

inline void mbarrier_init(std::uint64_t& barrier, int arrivals, const char* file = __builtin_FILE(),
                          int line = __builtin_LINE()) {
  Emulator::current().mbarrier_init(&barrier, static_cast<unsigned>(arrivals), {file, line});
}
inline void copy_async_arrive(std::uint64_t& barrier, const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
  Emulator::current().copy_async_arrive(&barrier, {file, line});
}
inline void mbarrier_wait(std::uint64_t& barrier, int parity, const char* file = __builtin_FILE(),
                          int line = __builtin_LINE()) {
  Emulator::current().mbarrier_wait(&barrier, static_cast<unsigned>(parity), {file, line});
}

inline void barrier_arrive(int barrier, int threads, const char* file = __builtin_FILE(),
                           int line = __builtin_LINE()) {
  Emulator::current().barrier(static_cast<unsigned>(barrier), static_cast<unsigned>(threads), false,
                              {file, line});
}
inline void barrier_sync(int barrier, int threads, const char* file = __builtin_FILE(),
                         int line = __builtin_LINE()) {
  Emulator::current().barrier(static_cast<unsigned>(barrier), static_cast<unsigned>(threads), true,
                              {file, line});
}

template <int kRegisters>
void give_up_registers() {}
template <int kRegisters>
void take_registers() {}

inline unsigned count_in_order(unsigned* count, unsigned last) {
  return Emulator::current().count_in_order(count, last);
}

inline void fence_async_proxy(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  Emulator::current().fence_async_proxy({file, line});
}

template <int kBlocks>
void wgmma_fence(float (&)[kBlocks][4], std::uint32_t (&a)[4], const char* file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
  Emulator::current().wgmma_fence(a, {file, line});
}

template <Major kMajor, int kBlocks>
void wgmma_bf16(float (&c)[kBlocks][4], const std::uint32_t (&a)[4], std::uint64_t b,
                const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  Emulator::current().wgmma({a, b, kMajor == Major::kK, c[0], kBlocks}, {file, line});
}

inline void wgmma_commit(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  Emulator::current().wgmma_commit({file, line});
}

template <int kBlocks, int kSteps>
void wgmma_wait(float (&)[kBlocks][4], const std::uint32_t (&)[kSteps][4],
                const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  Emulator::current().wgmma_wait(0, {file, line});
}

}  // namespace vcas::emu
#endif
