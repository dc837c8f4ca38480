// Random changes of training images. What becomes of an image depends on (seed, epoch, item).
// So it is the same whatever batch, thread or order the item comes in.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "data/image_view.h"

namespace vcas {

// The part of an image that is cut out and resized to what the model reads.
struct ResizedCropOptions {
  double scale_low = 0.08;  // share of the area
  double scale_high = 1.0;
  double ratio_low = 3.0 / 4.0;  // width over height
  double ratio_high = 4.0 / 3.0;
};

struct AugmentOptions {
  std::int64_t crop_padding = 0;  // zero pixels added on each side before a crop of the old size
  std::optional<ResizedCropOptions> resized_crop = {};
  bool flip = false;        // mirror left and right with probability 1/2
  std::int64_t cutout = 0;  // side of a square that is erased last; 0: none

  bool any() const { return crop_padding != 0 || resized_crop || flip || cutout != 0; }
};

// Output (y, x) reads input (y + dy, x + dx), and zero outside; the flip comes last.
struct CropFlip {
  std::int64_t dy = 0;
  std::int64_t dx = 0;
  bool flip = false;
};

CropFlip draw_crop_flip(const AugmentOptions& options, std::uint64_t seed, std::uint64_t epoch,
                        std::int64_t item);

// torchvision's RandomResizedCrop. Area and logarithm of the ratio are uniform.
// There are ten tries to fit them into the image.
// If none fits, the box is the image's middle, with the allowed ratio nearest to the image's.
ImageBox draw_resized_crop(const ResizedCropOptions& options, std::int64_t height,
                           std::int64_t width, std::uint64_t seed, std::uint64_t epoch,
                           std::int64_t item);

// The part of a square that lies within the image. Its middle is any pixel (DeVries & Taylor 2017).
ImageBox draw_cutout(std::int64_t side, std::int64_t height, std::int64_t width, std::uint64_t seed,
                     std::uint64_t epoch, std::int64_t item);

// [channels, height, width] with change.dy and change.dx done.
std::vector<std::uint8_t> shifted(const ImageView& image, const CropFlip& change);

}  // namespace vcas
