// The operations on a GPU.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/ops.h"

namespace vcas {

// Throws Error(kUnavailable) without a driver or a device.
std::unique_ptr<Ops> make_cuda_ops(Precision precision = Precision::kF32);

// Why make_cuda_ops would throw. Empty: there is a device.
std::string cuda_missing();

// The names of the devices, in the order of their numbers.
std::vector<std::string> cuda_devices();

}  // namespace vcas
