#include "kernels/cpu/cpu_ops.h"
#include "kernels/decorators/check_ops.h"
#include "kernels/ops.h"

namespace vcas {

std::unique_ptr<Ops> make_ops(const std::string& device) {
  const std::string check = "check:";
  const std::size_t comma = device.find(',');
  if (device.compare(0, check.size(), check) == 0 && comma != std::string::npos)
    return make_check_ops(make_ops(device.substr(check.size(), comma - check.size())),
                          make_ops(device.substr(comma + 1)));
  if (device == "cpu" || device == "auto") return make_cpu_ops();
  if (device == "cuda")
    throw Error(ExitCode::kUnavailable, "no CUDA device (this build has no CUDA support)",
                "device=\"auto\" uses the CPU here");
  throw Error(ExitCode::kBadConfig,
              "device \"" + device + "\" is not one of: auto, cpu, cuda, check:a,b");
}

}  // namespace vcas
