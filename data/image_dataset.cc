#include "data/image_dataset.h"

#include <fmt/format.h>

#include <utility>

#include "core/error.h"

namespace vcas {

namespace {

// All of one size, squares are squeezed as well as cut: a ViTImageProcessor of transformers knows
// no other way.
ImageContent squeezed(ImageContent content) {
  ImageTransformOptions& transform = content.transform;
  if (transform.short_side == 0 && (transform.size == 0 || content.height == content.width))
    transform.squeeze = true;
  return content;
}

}  // namespace

ImageDataset::ImageDataset(ImageContent content)
    : content_(squeezed(std::move(content))),
      transform_(content_.transform, content_.channels, content_.height, content_.width) {
  const ImageContent& c = content_;
  VCAS_CHECK(std::ssize(c.pixels) == size() * c.channels * c.height * c.width,
             "pixels do not match labels and shape");
}

void ImageDataset::append(std::int64_t index, const ItemDraw& draw, Batch& out) const {
  VCAS_CHECK(index >= 0 && index < size(), fmt::format("item {} of {}", index, size()));
  const ImageContent& c = content_;
  const std::uint8_t* pixels = c.pixels.data() + index * c.channels * c.height * c.width;
  transform_.append(planar_view(pixels, c.channels, c.height, c.width), index, draw, out.values);
}

}  // namespace vcas
