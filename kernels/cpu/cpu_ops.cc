#include "kernels/cpu/cpu_ops.h"

#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "kernels/cpu/compute.h"
#include "kernels/cpu/gemm.h"

#if defined(_OPENMP)
#include <omp.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace vcas {
namespace {

int thread_count() {
#if defined(_OPENMP)
  return omp_get_max_threads();
#else
  return 1;
#endif
}

class CpuOps final : public Ops {
 public:
  CpuOps(const Loops<float>& f32, const Loops<double>& f64) : context_(thread_count(), f32, f64) {
    gemm_use_one_thread();
  }

  std::string name() const override { return "cpu"; }

  void* allocate(std::size_t bytes) override {
    void* data = allocate_aligned(bytes);
    if (!data)
      throw Error(ExitCode::kOutOfMemory,
                  "no memory for " + std::to_string(bytes) + " bytes on the host",
                  "a smaller batch or micro-batch needs less");
    std::memset(data, 0, bytes);
    return data;
  }
  void deallocate(void* data, std::size_t) override { std::free(data); }
  void copy_to_device(void* device, const void* host, std::size_t bytes) override {
    if (bytes) std::memcpy(device, host, bytes);
  }
  void copy_to_host(void* host, const void* device, std::size_t bytes) override {
    if (bytes) std::memcpy(host, device, bytes);
  }

#define VCAS_RUN(Args)                  \
  void run(const Args& args) override { \
    check_call(args);                   \
    compute(context_, args);            \
  }
  VCAS_FOR_EACH_OP(VCAS_RUN)
#undef VCAS_RUN

 private:
  CpuContext context_;
};

}  // namespace

int thread_number() {
#if defined(_OPENMP)
  return omp_get_thread_num();
#else
  return 0;
#endif
}

void* allocate_aligned(std::size_t bytes) {
  constexpr std::size_t kCacheLine = 64, kHugePage = std::size_t{1} << 21;
  const std::size_t alignment = bytes >= 2 * kHugePage ? kHugePage : kCacheLine;
  if (bytes > SIZE_MAX - alignment) return nullptr;
  const std::size_t rounded = std::max(bytes + alignment - 1, alignment) / alignment * alignment;
  void* data = std::aligned_alloc(alignment, rounded);
#if defined(__linux__)
  if (data && alignment == kHugePage) madvise(data, rounded, MADV_HUGEPAGE);
#endif
  return data;
}

void* CpuContext::scratch_bytes(std::size_t bytes) {
  if (bytes > scratch_size_) {
    scratch_.reset();
    scratch_size_ = 0;
    scratch_.reset(allocate_aligned(bytes));
    if (!scratch_)
      throw Error(ExitCode::kOutOfMemory,
                  "no memory for " + std::to_string(bytes) + " bytes of workspace on the host");
    scratch_size_ = bytes;
  }
  return scratch_.get();
}

bool cpu_has(CpuLevel level) {
  switch (level) {
#if defined(__x86_64__)
    case CpuLevel::kV3:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("bmi2");
    case CpuLevel::kV4:
      return cpu_has(CpuLevel::kV3) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
    case CpuLevel::kV3:
    case CpuLevel::kV4:
      return false;
#endif
    case CpuLevel::kBest:
    case CpuLevel::kBase:
      return true;
  }
  return false;
}

CpuLevel best_cpu_level() {
  constexpr std::pair<std::string_view, CpuLevel> kLevels[] = {
      {"v4", CpuLevel::kV4}, {"v3", CpuLevel::kV3}, {"v2", CpuLevel::kBase}};
  const char* asked = std::getenv("VCAS_CPU_LEVEL");
  for (const auto& [name, level] : kLevels)
    if (asked && *asked ? name == asked : cpu_has(level)) return level;
  throw Error(ExitCode::kBadConfig,
              std::string("VCAS_CPU_LEVEL=\"") + asked + "\" is not one of: v2, v3, v4");
}

std::unique_ptr<Ops> make_cpu_ops(CpuLevel level) {
  if (level == CpuLevel::kBest) level = best_cpu_level();
  if (!cpu_has(level))
    throw Error(ExitCode::kUnavailable,
                "this processor lacks the instructions of the level asked for",
                "without VCAS_CPU_LEVEL it runs the best level that it has");
#if defined(__x86_64__)
  if (level == CpuLevel::kV4) return std::make_unique<CpuOps>(v4::loops_f32, v4::loops_f64);
  if (level == CpuLevel::kV3) return std::make_unique<CpuOps>(v3::loops_f32, v3::loops_f64);
#endif
  return std::make_unique<CpuOps>(base::loops_f32, base::loops_f64);
}

}  // namespace vcas
