#include "kernels/device/patch_wgmma.cuh"
#include "tests/kernels/ptx_probe.h"

namespace vcas::VCAS_DEVICE {

__global__ void to_tf32_kernel(const float* in, float* out) {
  const std::uint32_t bits = to_tf32(in[threadIdx.x]);
  memcpy(out + threadIdx.x, &bits, sizeof bits);
}

// mma(c, a, b) of each lane's numbers: four words of a, two of b, four of c.
template <class Mma>
__device__ void run_mma(const float* in, float* out, const Mma& mma) {
  const float* own = in + threadIdx.x * 10;
  std::uint32_t a[4], b[2];
  float c[4];
  memcpy(a, own, sizeof a);
  memcpy(b, own + 4, sizeof b);
  memcpy(c, own + 6, sizeof c);
  mma(c, a, b);
  memcpy(out + threadIdx.x * 4, c, sizeof c);
}

__global__ void mma_tf32_kernel(const float* in, float* out) {
  run_mma(in, out, [](auto& c, const auto& a, const auto& b) { mma_tf32(c, a, b); });
}

__global__ void to_bf16_pair_kernel(const float* in, float* out) {
  const std::uint32_t pair = to_bf16_pair(in[2 * threadIdx.x], in[2 * threadIdx.x + 1]);
  memcpy(out + threadIdx.x, &pair, sizeof pair);
}

__global__ void mma_bf16_kernel(const float* in, float* out) {
  run_mma(in, out, [](auto& c, const auto& a, const auto& b) { mma_bf16(c, a, b); });
}

struct alignas(16) FourWords {
  float value[4];
};

// load(words, row) with the row that the lane gave.
template <class Load>
__device__ void run_load(const float* in, float* out, const Load& load) {
  struct Shared {
    FourWords row[kWarp];
  };
  VCAS_SHARED(Shared, shared);
  for (int i = 0; i < 4; ++i) shared.row[threadIdx.x].value[i] = in[4 * threadIdx.x + i];
  __syncthreads();
  std::uint32_t words[4];
  load(words, &shared.row[threadIdx.x]);
  memcpy(out + 4 * threadIdx.x, words, sizeof words);
}

__global__ void load_blocks_kernel(const float* in, float* out) {
  run_load(in, out, [](auto& words, const void* row) { load_blocks(words, row); });
}

__global__ void load_blocks_transposed_kernel(const float* in, float* out) {
  run_load(in, out, [](auto& words, const void* row) { load_blocks_transposed(words, row); });
}

__global__ void copy_async_kernel(const float* in, float* out) {
  struct Shared {
    FourWords four[kWarp];
    float one[kWarp];
  };
  VCAS_SHARED(Shared, shared);
  const int thread = static_cast<int>(threadIdx.x);
  copy_async(&shared.four[thread], reinterpret_cast<const FourWords*>(in) + thread,
             thread % 5 != 4);
  copy_async_commit();
  copy_async(&shared.one[thread], in + 4 * kWarp + thread, thread % 3 != 2);
  copy_async_commit();
  copy_async_wait<1>();
  __syncthreads();
  for (int i = 0; i < 4; ++i) out[4 * thread + i] = shared.four[kWarp - 1 - thread].value[i];
  copy_async_wait<0>();
  __syncthreads();
  out[4 * kWarp + thread] = shared.one[kWarp - 1 - thread];
}

// The first warp writes and arrives, the second waits and reads.
__global__ void barrier_kernel(const float* in, float* out) {
  struct Shared {
    float value[kWarp];
  };
  VCAS_SHARED(Shared, shared);
  constexpr int kBarrier = 15, kBoth = 2 * kWarp;
  if (warp_of_thread() == 0) {
    shared.value[threadIdx.x] = in[threadIdx.x];
    barrier_arrive(kBarrier, kBoth);
  } else {
    barrier_sync(kBarrier, kBoth);
    out[lane_of_thread()] = shared.value[kWarp - 1 - lane_of_thread()];
  }
}

// The first warp copies what the second waits for and reads, three times.
__global__ void mbarrier_kernel(const float* in, float* out) {
  struct Shared {
    float value[kWarp];
    std::uint64_t landed;
  };
  VCAS_SHARED(Shared, shared);
  const int lane = lane_of_thread();
  if (threadIdx.x == 0) mbarrier_init(shared.landed, kWarp);
  __syncthreads();
  for (int phase = 0; phase < 3; ++phase) {
    if (warp_of_thread() == 0) {
      copy_async(&shared.value[lane], in + phase * kWarp + lane, true);
      copy_async_arrive(shared.landed);
    } else {
      mbarrier_wait(shared.landed, phase % 2);
      out[phase * kWarp + lane] = shared.value[kWarp - 1 - lane];
    }
    __syncthreads();
  }
}

// a[64, 16 kSteps] b[16 kSteps, 8 kBlocks] by a warpgroup. `in` begins with fragments of a for each
// 16 of k, and product(sum, a, step) starts those with b. A thread makes one number of each four
// sums.
constexpr int kWarpgroup = 4 * kWarp;
template <int kSteps, int kBlocks, class Product>
__device__ void run_wgmma(const float* in, float* out, const Product& product) {
  const int thread = static_cast<int>(threadIdx.x);
  fence_async_proxy();
  __syncthreads();
  float sum[kBlocks][4] = {};
  std::uint32_t a[kSteps][4];
  for (int step = 0; step < kSteps; ++step) {
    memcpy(a[step], in + (step * kWarpgroup + thread) * 4, sizeof a[step]);
    wgmma_fence(sum, a[step]);
    product(sum, a[step], step);
  }
  wgmma_commit();
  wgmma_wait(sum, a);
  for (int i = 0; i < kBlocks; ++i)
    out[thread * kBlocks + i] = sum[i][0] + 64 * (sum[i][1] + 64 * (sum[i][2] + 64 * sum[i][3]));
}

// Behind the fragments are rows k of b.
constexpr int kProbeDepth = 32;
using ProbePanel = SwizzledPanel<kProbeDepth>;
template <int kPanels>
__global__ void wgmma_bf16_kernel(const float* in, float* out) {
  constexpr int kSteps = kProbeDepth / 16, kChunks = kPanels * ProbePanel::kChunks;
  VCAS_DYNAMIC_SHARED(ProbePanel, panel);
  const int thread = static_cast<int>(threadIdx.x);
  const float* b = in + kSteps * kWarpgroup * 4;
  for (int i = thread; i < kProbeDepth * kChunks; i += kWarpgroup) {
    const int k = i / kChunks, c = i % kChunks;
    memcpy(&panel[c / ProbePanel::kChunks].chunk(k, c % ProbePanel::kChunks), b + 4 * i, 16);
  }
  run_wgmma<kSteps, 8 * kPanels>(in, out, [&](auto& sum, auto& a, int step) {
    wgmma_bf16<Major::kMn>(sum, a, mn_major_descriptor(panel, step * 16));
  });
}

// Behind the fragments are columns of b.
using KMajorPanel = SwizzledPanel<128>;
__global__ void wgmma_bf16_k_major_kernel(const float* in, float* out) {
  constexpr int kChunks = KMajorPanel::kChunks, kSteps = kChunks / 2;
  VCAS_DYNAMIC_SHARED(KMajorPanel, panel);
  const float* b = in + kSteps * kWarpgroup * 4;
  for (int i = static_cast<int>(threadIdx.x); i < 128 * kChunks; i += kWarpgroup)
    memcpy(&panel->chunk(i / kChunks, i % kChunks), b + 4 * i, 16);
  run_wgmma<kSteps, 16>(in, out, [&](auto& sum, auto& a, int step) {
    wgmma_bf16<Major::kK>(sum, a, k_major_descriptor(*panel, step * 2));
  });
}

std::vector<float> ptx_probe(const std::string& name, const std::vector<float>& in,
                             std::size_t outputs) {
  Context context;
  std::vector<float> out(outputs);
  auto* from = static_cast<float*>(context.allocate(in.size() * sizeof(float)));
  auto* to = static_cast<float*>(context.allocate(outputs * sizeof(float)));
  context.copy_to_device(from, in.data(), in.size() * sizeof(float));
  const Grid warp{extent(1), extent(kWarp)};
  if (name == "to_tf32") launch(context, warp, to_tf32_kernel, from, to);
  if (name == "mma_tf32") launch(context, warp, mma_tf32_kernel, from, to);
  if (name == "to_bf16_pair") launch(context, warp, to_bf16_pair_kernel, from, to);
  if (name == "mma_bf16") launch(context, warp, mma_bf16_kernel, from, to);
  if (name == "load_blocks") launch(context, warp, load_blocks_kernel, from, to);
  if (name == "load_blocks_transposed")
    launch(context, warp, load_blocks_transposed_kernel, from, to);
  if (name == "copy_async") launch(context, warp, copy_async_kernel, from, to);
  if (name == "barrier") launch(context, {extent(1), extent(2 * kWarp)}, barrier_kernel, from, to);
  if (name == "mbarrier")
    launch(context, {extent(1), extent(2 * kWarp)}, mbarrier_kernel, from, to);
  if (name == "wgmma_bf16")
    launch(context, {extent(1), extent(kWarpgroup), 2 * sizeof(ProbePanel)}, wgmma_bf16_kernel<2>,
           from, to);
  if (name == "wgmma_bf16_wide")
    launch(context, {extent(1), extent(kWarpgroup), 4 * sizeof(ProbePanel)}, wgmma_bf16_kernel<4>,
           from, to);
  if (name == "wgmma_bf16_k_major")
    launch(context, {extent(1), extent(kWarpgroup), sizeof(KMajorPanel)}, wgmma_bf16_k_major_kernel,
           from, to);
  context.copy_to_host(out.data(), to, outputs * sizeof(float));
  context.deallocate(from);
  context.deallocate(to);
  return out;
}

}  // namespace vcas::VCAS_DEVICE
