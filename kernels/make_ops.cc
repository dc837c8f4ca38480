#include <optional>
#include <string_view>
#include <utility>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda_support.h"
#include "kernels/decorators/check_ops.h"
#include "kernels/decorators/range_ops.h"
#include "kernels/device_name.h"
#include "kernels/emu/emu_ops.h"
#if VCAS_CUDA
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/profiler.h"
#endif

namespace vcas {
namespace {

constexpr std::string_view kCheck = "check:";

// a and b of "check:a,b".
std::optional<std::pair<std::string, std::string>> compared(const std::string& device) {
  const std::size_t comma = device.find(',');
  if (!device.starts_with(kCheck) || comma == std::string::npos) return std::nullopt;
  return std::pair(device.substr(kCheck.size(), comma - kCheck.size()), device.substr(comma + 1));
}

std::string checked_cpu(const std::string& device, Precision precision) {
  if (precision != Precision::kF32)
    throw Error(ExitCode::kBadConfig,
                std::string("precision=\"") + (precision == Precision::kTf32 ? "tf32" : "bf16") +
                    "\" needs a GPU, but device=\"" + device + "\" is the CPU here",
                "precision=\"f32\" works everywhere");
  return "cpu";
}

}  // namespace

std::unique_ptr<Profiler> make_profiler([[maybe_unused]] const std::string& device) {
#if VCAS_CUDA
  if (device == "cuda") return make_cuda_profiler();
#endif
  return nullptr;
}

std::string device_name(const std::string& device, Precision precision) {
  if (const auto both = compared(device)) {
    if (precision == Precision::kBf16)
      throw Error(ExitCode::kBadConfig,
                  "precision=\"bf16\" is not compared, but device is \"" + device + "\"",
                  "check:a,b compares f32, and tf32 on devices that have it");
    return std::string(kCheck) + device_name(both->first, precision) + "," +
           device_name(both->second, precision);
  }
  if (device == "cpu") return checked_cpu(device, precision);
  if (device == "emu") return device;
  if (device != "auto" && device != "cuda")
    throw Error(ExitCode::kBadConfig,
                "device \"" + device + "\" is not one of: auto, cpu, cuda, emu, check:a,b");
  const std::string missing = cuda_support().missing;
  if (missing.empty()) return "cuda";
  if (device == "auto") return checked_cpu(device, precision);
  throw Error(ExitCode::kUnavailable, "no CUDA device (" + missing + ")",
              "device=\"auto\" uses the CPU here");
}

std::unique_ptr<Ops> make_ops(const std::string& device, Precision precision) {
  const std::string name = device_name(device, precision);
  if (const auto both = compared(name)) {
    // Two devices may round factors to TF32 in different ways, by 2^-10: so much instead of 2^-23,
    // the tolerance's safety of 8 included.
    const double tolerance_scale = precision == Precision::kTf32 ? 1024 : 1;
    return make_check_ops(make_ops(both->first, precision), make_ops(both->second, precision),
                          tolerance_scale);
  }
#if VCAS_CUDA
  if (name == "cuda") return make_cuda_ops(precision);
#endif
  return name == "emu" ? make_emu_ops(emu::ThreadOrder::kForward, precision) : make_cpu_ops();
}

}  // namespace vcas
