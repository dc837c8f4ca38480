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

// An exchange by NCCL, of one rank too. make_cuda_ops has made `ops`.
std::unique_ptr<Exchange> make_cuda_nccl_exchange(Ops& ops, Ranks& ranks);

}  // namespace vcas
