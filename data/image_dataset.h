// Images with labels, in memory or elsewhere.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "data/image_transform.h"

namespace vcas {

// What all images have in common. `Content` has their labels, class names, shape and transform.
template <class Content>
class LabelledImages : public Dataset {
 public:
  std::int64_t size() const override { return std::ssize(content_.labels); }
  std::vector<std::int64_t> item_shape() const override { return transform_.shape(); }
  const std::vector<std::string>& class_names() const override { return content_.class_names; }
  std::int32_t label(std::int64_t index) const override { return content_.labels[index]; }
  const ImageTransformOptions* image_transform() const override { return &transform_.options(); }

 protected:
  // A transform that does not fit the shape is kBadConfig.
  explicit LabelledImages(Content content)
      : content_(std::move(content)),
        transform_(content_.transform, content_.shape.at(0), content_.shape.at(1),
                   content_.shape.at(2)) {}

  Content content_;
  ImageTransform transform_;
};

struct ImageContent {
  std::vector<std::int64_t> shape;   // {channels, height, width}
  std::vector<std::uint8_t> pixels;  // [N, channels, height, width]
  std::vector<std::int32_t> labels;  // [N]
  std::vector<std::string> class_names;
  ImageTransformOptions transform;
};

// Images kept as bytes and normalised on the way out: a quarter of the memory of floats.
class ImageDataset final : public LabelledImages<ImageContent> {
 public:
  explicit ImageDataset(ImageContent content);
  void append(std::int64_t index, const ItemDraw& draw, Batch& out) const override;
};

}  // namespace vcas
