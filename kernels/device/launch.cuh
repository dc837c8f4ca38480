// How kernels are launched: the host side of every operation, and the one launch statement.
#pragma once

#include <algorithm>
#include <string>
#include <type_traits>

#include "kernels/device/port.cuh"
#include "kernels/ops.h"

namespace vcas::VCAS_DEVICE {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;
// Threads of a block where nothing else decides; eight rows where a warp takes a row.
constexpr int kThreads = 256;
constexpr unsigned kMostGridYz = 65535;  // blocks of a grid in y and in z, on every device

// Calls f(T{}) with the C++ type of a statistics dtype.
template <class F>
void with_statistics_type(DType dtype, const F& f) {
  if (dtype == DType::kF32) return f(float{});
  VCAS_CHECK(dtype == DType::kF64, "no device kernels for " + std::string(dtype_name(dtype)));
  f(double{});
}

// The same for a compute dtype.
template <class F>
void with_type(DType dtype, const F& f) {
  if (dtype == DType::kBF16) return f(bfloat16{});
  with_statistics_type(dtype, f);
}

// What is known when a kernel is compiled.
template <int kValue>
using Constant = std::integral_constant<int, kValue>;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

struct Grid {
  dim3 blocks;
  dim3 threads;
  std::size_t shared_bytes = 0;
};

inline dim3 extent(std::int64_t x, std::int64_t y = 1, std::int64_t z = 1) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

// Launches `kernel`, unless the grid is empty. Throws Error(kBadConfig) for a grid that is too
// large: some have the items of a batch in y or z.
template <class... P, class... A>
void launch(Context& context, const Grid& grid, void (*kernel)(P...), A... arguments) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
  if (std::max(grid.blocks.y, grid.blocks.z) > kMostGridYz)
    throw Error(ExitCode::kBadConfig,
                "a device takes at most " + std::to_string(kMostGridYz) + " items at once",
                "set a smaller train.micro_batch, and train.eval_batch");
#if defined(__CUDACC__)
  // 48 KiB with what the kernel declares need no more. A graph may hold a launch with more than
  // this one, so the limit never falls.
  if (const int bytes = static_cast<int>(grid.shared_bytes); bytes > 32 * 1024) {
    cudaFuncAttributes now;
    check(cudaFuncGetAttributes(&now, kernel), "attributes of a kernel");
    if (now.maxDynamicSharedSizeBytes < bytes)
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "shared memory of a kernel");
  }
  kernel<<<grid.blocks, grid.threads, grid.shared_bytes, context.stream()>>>(
      static_cast<P>(arguments)...);
  check(cudaGetLastError(), "kernel launch");
#else
  context.launch(grid.blocks, grid.threads, grid.shared_bytes, kernel, arguments...);
#endif
}

// Throws Error(kBadConfig) where a block of `what` needs more shared memory than the device has.
inline void check_shared(const Context& context, std::size_t bytes, const std::string& what,
                         const std::string& hint) {
  if (bytes > context.most_shared_bytes())
    throw Error(ExitCode::kBadConfig,
                what + " need " + std::to_string(bytes >> 10) + " KiB of shared memory, device \"" +
                    context.name() + "\" has " + std::to_string(context.most_shared_bytes() >> 10) +
                    " KiB",
                hint);
}

// Enough blocks of kThreads for every multiprocessor, for kernels whose threads go round
// (`for_each_element`). As many are on one at once as registers allow: more would come behind them.
// Threads of up to 32 registers have room for 8 blocks.
inline Grid grid_over(const Context& context, std::int64_t elements, unsigned at_once = 8) {
  return {extent(std::min<std::int64_t>(ceil_div(elements, kThreads),
                                        context.multiprocessors() * at_once)),
          extent(kThreads)};
}

// One warp a row.
inline Grid grid_of_rows(std::int64_t rows) {
  return {extent(ceil_div(rows, kThreads / kWarp)), extent(kThreads)};
}

// A block as small as the problem, for kernels of one block, which name kMostInBlock as their
// launch bounds: a block of so many threads has 64 registers for each.
constexpr int kMostInBlock = 1024;
inline Grid one_block(std::int64_t elements) {
  return {extent(1),
          extent(std::clamp<std::int64_t>(ceil_div(elements, kWarp) * kWarp, kWarp, kMostInBlock))};
}

// What a kernel is given of each operation of a group. As a parameter it is a __grid_constant__: it
// stays where the launch put it, though the index is not known before.
template <class Item>
struct Several {
  Item each[kMostInGroup] = {};
  unsigned size = 0;
  void add(const Item& item) { each[size++] = item; }
};

template <class T>
T* scratch(Context& context, std::int64_t elements) {
  return static_cast<T*>(context.scratch(static_cast<std::size_t>(elements) * sizeof(T)));
}

// The host side of each operation: it checks what kernels cannot, and launches them.
#define VCAS_COMPUTE(Args) void compute(Context& context, const Args& args);
VCAS_FOR_EACH_OP(VCAS_COMPUTE)
#undef VCAS_COMPUTE

// ---- on the device ----

__device__ inline std::int64_t at(const std::int32_t* row, std::int64_t i) {
  return row ? row[i] : i;
}

__device__ inline int lane_of_thread() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int warp_of_thread() { return static_cast<int>(threadIdx.x) / kWarp; }
// The row of the running warp in `grid_of_rows`.
__device__ inline std::int64_t row_of_warp() {
  return static_cast<std::int64_t>(blockIdx.x) * (kThreads / kWarp) + warp_of_thread();
}

// body(i) for this thread's share of [0, n).
template <class Body>
__device__ inline void for_each_element(std::int64_t n, const Body& body) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += step)
    body(i);
}

}  // namespace vcas::VCAS_DEVICE
