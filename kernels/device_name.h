// Which device operations would run on, without making it: a GPU takes libraries and memory.
#pragma once

#include <string>

#include "kernels/ops.h"

namespace vcas {

// Ops::name() of make_ops(device, precision): "auto" has become a device.
// Throws what make_ops throws for names, precisions and devices that are absent.
std::string device_name(const std::string& device, Precision precision = Precision::kF32);

}  // namespace vcas
