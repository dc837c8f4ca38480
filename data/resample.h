// Images in another size, by separable filters that widen with the reduction (Turkowski, "Filters
// for common resampling tasks", Graphics Gems, 1990).
// A smaller image is the mean of what it stands for.
// Weights have 22 fractional bits. The image between the passes has 8 bits.
// The pixels are those of Pillow up to version 12.1, bit for bit.
// Later ones begin with the columns for some shapes whose height shrinks, and round elsewhere.
#pragma once

#include <cstdint>
#include <vector>

#include "data/image_view.h"

namespace vcas {

enum class Interpolation {
  kBilinear,  // a triangle of radius 1
  kBicubic,   // radius 2, a = -1/2 (Keys, "Cubic convolution interpolation for digital image
              // processing", IEEE Trans. ASSP 29, 1981)
};

// What lies in `window` of the image resized to height x width: [channels, window.height,
// window.width]. Nothing outside of the image is looked at: at its edges the filters are cut off.
std::vector<std::uint8_t> resample(const ImageView& image, std::int64_t height, std::int64_t width,
                                   const ImageBox& window, Interpolation interpolation);

}  // namespace vcas
