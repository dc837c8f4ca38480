// What layers over images share: the settings of their patches.
#pragma once

#include "layers/layer.h"

namespace vcas {

// From the settings height, width, kernel, stride (1) and padding (0).
// Throws Error(kBadConfig) where no patch fits, or one has no pixel inside.
Patches read_patches(const LayerConfig& config);

// Throws Error(kBadConfig) unless the only input has one row of so many values in f32.
void check_image(const char* kind, const PlanInput& in, std::int64_t values);

// Throws Error(kBadConfig) unless the only input has the pixels of the patches as rows.
void check_pixels(const char* kind, const PlanInput& in, std::int64_t pixels);

}  // namespace vcas
