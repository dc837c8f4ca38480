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

std::unique_ptr<Ops> make_cuda([[maybe_unused]] Precision precision) {
#if VCAS_CUDA
  return make_cuda_ops(precision);
#else
  throw Error(ExitCode::kUnavailable, "no CUDA device (this build has no CUDA support)",
              "device=\"auto\" uses the CPU here");
#endif
}

std::unique_ptr<Ops> make_cpu(const std::string& device, Precision precision) {
  if (precision != Precision::kF32)
    throw Error(ExitCode::kBadConfig,
                std::string("precision=\"") + (precision == Precision::kTf32 ? "tf32" : "bf16") +
                    "\" needs a GPU, but device=\"" + device + "\" is the CPU here",
                "precision=\"f32\" works everywhere");
  return make_cpu_ops();
}

std::unique_ptr<Ops> make_auto(Precision precision) {
#if VCAS_CUDA
  if (cuda_missing().empty()) return make_cuda_ops(precision);
#endif
  return make_cpu("auto", precision);
}

}  // namespace

std::unique_ptr<Profiler> make_profiler([[maybe_unused]] const std::string& device) {
#if VCAS_CUDA
  if (device == "cuda") return make_cuda_profiler();
#endif
  return nullptr;
}

std::unique_ptr<Ops> make_ops(const std::string& device, Precision precision) {
  const std::string check = "check:";
  const std::size_t comma = device.find(',');
  const bool checks = device.compare(0, check.size(), check) == 0 && comma != std::string::npos;
  if (checks && precision == Precision::kBf16)
    throw Error(ExitCode::kBadConfig,
                "precision=\"bf16\" is not compared, but device is \"" + device + "\"",
                "check:a,b compares f32, and tf32 on devices that have it");
  if (checks) {
    // Two devices may round factors to TF32 in different ways, by 2^-10: so much instead of 2^-23,
    // the tolerance's safety of 8 included.
    const double tolerance_scale = precision == Precision::kTf32 ? 1024 : 1;
    return make_check_ops(make_ops(device.substr(check.size(), comma - check.size()), precision),
                          make_ops(device.substr(comma + 1), precision), tolerance_scale);
  }
  if (device == "auto") return make_auto(precision);
  if (device == "cpu") return make_cpu(device, precision);
  if (device == "cuda") return make_cuda(precision);
  if (device == "emu") return make_emu_ops(emu::ThreadOrder::kForward, precision);
  throw Error(ExitCode::kBadConfig,
              "device \"" + device + "\" is not one of: auto, cpu, cuda, emu, check:a,b");
}

}  // namespace vcas
