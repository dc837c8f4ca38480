// What updates make of the norm of a gradient, as every backend computes it.
#pragma once

#include <cmath>

#include "core/host_device.h"

namespace vcas {

// Whether a gradient of this squared norm may change parameters.
// NaN and infinity of any element reach the norm.
VCAS_HOST_DEVICE inline bool is_usable(double squared_norm) {
  return squared_norm - squared_norm == 0;
}

// The factor that makes a gradient of this squared norm no longer than max_norm.
// max_norm = 0: the gradient may have any length.
VCAS_HOST_DEVICE inline double clip_scale(double squared_norm, double max_norm) {
  const double norm = sqrt(squared_norm);
  return max_norm > 0 && norm > max_norm ? max_norm / norm : 1;
}

}  // namespace vcas
