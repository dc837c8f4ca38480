// From the pixels of an image to what a model reads: augmentation, resizing, normalisation.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "data/dataset.h"
#include "data/image_view.h"
#include "data/resample.h"

namespace vcas {

struct ImageTransformOptions {
  std::int64_t size = 0;  // side of the squares that the model reads; 0: images as they are
  // The short side is resized to this before the middle is cut out; 0: to `size`. Not looked at
  // where a random part is cut out.
  std::int64_t short_side = 0;
  bool squeeze = false;  // all sides, so that images which are not square change their shape
  Interpolation interpolation = Interpolation::kBicubic;
  std::vector<float> mean = {};  // [channels] a value is (pixel / 255 - mean) / std
  std::vector<float> std = {};   // [channels]
};

class ImageTransform {
 public:
  // height and width: of images that stay as they are. Statistics that do not fit the channels, and
  // a short side below the size or without one, are kBadConfig.
  ImageTransform(ImageTransformOptions options, std::int64_t channels, std::int64_t height = 0,
                 std::int64_t width = 0);

  const ImageTransformOptions& options() const { return options_; }
  std::vector<std::int64_t> shape() const { return {channels_, height_, width_}; }

  // Appends [channels, height, width] of the item whose pixels are `image`. A cutout that is not
  // below height and width can erase all of them: kBadConfig.
  void append(const ImageView& image, std::int64_t item, const ItemDraw& draw,
              std::vector<float>& out) const;

 private:
  std::vector<std::uint8_t> resized(const ImageView& image, std::int64_t item,
                                    const ItemDraw& draw) const;

  ImageTransformOptions options_;
  std::int64_t channels_, height_, width_;      // of what comes out
  std::vector<std::array<float, 256>> tables_;  // [channels] byte -> normalised value
};

}  // namespace vcas
