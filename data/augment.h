// Random crop with zero padding and horizontal flip.
#pragma once

#include <cstdint>

namespace vcas {

struct AugmentOptions {
  std::int64_t crop_padding = 0;  // zero pixels added on each side before a crop of the old size
  bool flip = false;              // mirror left and right with probability 1/2
};

// One item's share of the randomness: output (y, x) reads input (y + dy, x + dx), and zero outside;
// the flip comes after the crop.
struct CropFlip {
  std::int64_t dy = 0;
  std::int64_t dx = 0;
  bool flip = false;
};

// Addressed by (seed, epoch, item), so the same whatever batch, thread or order the item comes in.
CropFlip draw_crop_flip(const AugmentOptions& options, std::uint64_t seed, std::uint64_t epoch,
                        std::int64_t item);

// One channel of an image: pixels [height, width] to out [height, width] through `table`, the 256
// normalised values. Pixels from outside the image are zero before the table.
void crop_flip_channel(const std::uint8_t* pixels, std::int64_t height, std::int64_t width,
                       const CropFlip& change, const float* table, float* out);

}  // namespace vcas
