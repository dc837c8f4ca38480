// Images in memory, as bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/image_transform.h"

namespace vcas {

struct ImageContent {
  std::int64_t channels = 1;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::vector<std::uint8_t> pixels;  // [N, channels, height, width]
  std::vector<std::int32_t> labels;  // [N]
  std::vector<std::string> class_names;
  ImageTransformOptions transform;
};

// Images kept as bytes and normalised on the way out: a quarter of the memory of floats.
class ImageDataset final : public Dataset {
 public:
  // A transform that does not fit the images is kBadConfig.
  explicit ImageDataset(ImageContent content);

  std::int64_t size() const override { return std::ssize(content_.labels); }
  std::vector<std::int64_t> item_shape() const override { return transform_.shape(); }
  const std::vector<std::string>& class_names() const override { return content_.class_names; }
  std::int32_t label(std::int64_t index) const override { return content_.labels[index]; }
  void append(std::int64_t index, const ItemDraw& draw, Batch& out) const override;
  const ImageTransformOptions* image_transform() const override { return &transform_.options(); }

 private:
  ImageContent content_;
  ImageTransform transform_;
};

}  // namespace vcas
