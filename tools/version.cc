#include "tools/version.h"

#include <fmt/format.h>

#include "core/compressed_file.h"
#include "data/image_file.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cuda_support.h"

namespace vcas {
namespace {

const char* level_name(CpuLevel level) {
  if (level == CpuLevel::kV4) return "avx512";
  return level == CpuLevel::kV3 ? "avx2" : "base";
}

std::string loops_text() {
  CpuLevel best = CpuLevel::kBase;
  for (const CpuLevel level : {CpuLevel::kV3, CpuLevel::kV4})
    if (cpu_has(level)) best = level;
  const CpuLevel used = best_cpu_level();
  return used == best
             ? level_name(used)
             : fmt::format("{} (VCAS_CPU_LEVEL; best: {})", level_name(used), level_name(best));
}

std::string cuda_text(const CudaSupport& cuda) {
  if (cuda.build.empty()) return "no";
  return fmt::format(
      "{} (device: {})", cuda.build,
      cuda.devices.empty() ? "none" : fmt::format("{}", fmt::join(cuda.devices, ", ")));
}

}  // namespace

std::string version() {
  const std::string commit = source_commit();
  return commit.empty() ? VCAS_VERSION : fmt::format("{} ({})", VCAS_VERSION, commit);
}

std::string version_line() {
  const GemmLibrary gemm = gemm_library();
  return fmt::format("vcas {}  C++20 {}  CPU: {}{} loops {}  CUDA: {}  {}  {}", version(),
                     VCAS_COMPILER, gemm.name,
                     gemm.kernel.empty() ? "," : fmt::format(" ({}),", gemm.kernel), loops_text(),
                     cuda_text(cuda_support()), compression_formats(), image_formats());
}

}  // namespace vcas
