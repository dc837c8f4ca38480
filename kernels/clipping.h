// What updates make of the norm of a gradient, as every backend computes it.
#pragma once

#include <cmath>

#include "core/host_device.h"

namespace vcas {

// Whether a gradient of this squared norm, or with this factor, may change parameters.
// NaN and infinity of any element reach the norm.
VCAS_HOST_DEVICE inline bool is_usable(double number) { return number - number == 0; }

// The factor that makes a gradient of this squared norm no longer than max_norm.
// max_norm = 0: the gradient may have any length.
VCAS_HOST_DEVICE inline double clip_scale(double squared_norm, double max_norm) {
  const double norm = sqrt(squared_norm);
  return max_norm > 0 && norm > max_norm ? max_norm / norm : 1;
}

// The factor that a gradient of this squared norm is multiplied by. NaN: it may change nothing.
// Without `predicted` it is clip_scale. A sampled gradient is then biased: long draws shrink most.
//
// `predicted` is the running mean of the squared norms of earlier gradients, 0 before the first.
// Clipping by it instead keeps the mean, since the factor depends on no draw of this gradient.
// Only one that explodes is scaled down by its own norm, too, and counts as no longer than that.
VCAS_HOST_DEVICE inline double clip_factor(double squared_norm, double max_norm,
                                           double* predicted) {
  constexpr double kDecay = 0.9, kExplosion = 10;
  if (!is_usable(squared_norm)) return NAN;
  if (!predicted || max_norm == 0) return clip_scale(squared_norm, max_norm);
  const double expected = *predicted > 0 ? *predicted : squared_norm;
  const double guard = clip_scale(squared_norm, fmax(max_norm, kExplosion * sqrt(expected)));
  *predicted = kDecay * expected + (1 - kDecay) * guard * guard * squared_norm;
  return guard * clip_scale(expected, max_norm);
}

}  // namespace vcas
