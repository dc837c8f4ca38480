#include "kernels/cpu/cpu_ops.h"
#include "kernels/decorators/check_ops.h"
#include "kernels/decorators/range_ops.h"
#include "kernels/emu/emu_ops.h"
#include "kernels/ops.h"
#if VCAS_CUDA
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/profiler.h"
#endif

namespace vcas {
namespace {

std::unique_ptr<Ops> make_cuda() {
#if VCAS_CUDA
  return make_cuda_ops();
#else
  throw Error(ExitCode::kUnavailable, "no CUDA device (this build has no CUDA support)",
              "device=\"auto\" uses the CPU here");
#endif
}

std::unique_ptr<Ops> make_auto() {
#if VCAS_CUDA
  if (cuda_missing().empty()) return make_cuda_ops();
#endif
  return make_cpu_ops();
}

}  // namespace

std::unique_ptr<Profiler> make_profiler([[maybe_unused]] const std::string& device) {
#if VCAS_CUDA
  if (device == "cuda") return make_cuda_profiler();
#endif
  return nullptr;
}

std::unique_ptr<Ops> make_ops(const std::string& device) {
  const std::string check = "check:";
  const std::size_t comma = device.find(',');
  if (device.compare(0, check.size(), check) == 0 && comma != std::string::npos)
    return make_check_ops(make_ops(device.substr(check.size(), comma - check.size())),
                          make_ops(device.substr(comma + 1)));
  if (device == "auto") return make_auto();
  if (device == "cpu") return make_cpu_ops();
  if (device == "cuda") return make_cuda();
  if (device == "emu") return make_emu_ops();
  throw Error(ExitCode::kBadConfig,
              "device \"" + device + "\" is not one of: auto, cpu, cuda, emu, check:a,b");
}

}  // namespace vcas
