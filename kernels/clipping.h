// What updates make of the norm of a gradient, as every backend computes it.
#pragma once

#include <cmath>

#include "core/host_device.h"

namespace vcas {

// Whether a gradient of this squared norm, which NaN and infinity reach from every element, may
// change parameters.
VCAS_HOST_DEVICE inline bool is_usable(double squared_norm) {
  return squared_norm - squared_norm == 0;
}

// What a gradient of this squared norm is multiplied with, so that it is no longer than max_norm
// (0: however long it is).
VCAS_HOST_DEVICE inline double clip_scale(double squared_norm, double max_norm) {
  const double norm = sqrt(squared_norm);
  return max_norm > 0 && norm > max_norm ? max_norm / norm : 1;
}

}  // namespace vcas
