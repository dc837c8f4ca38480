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
  if (transform.short_side == 0 && (transform.size == 0 || content.shape[1] == content.shape[2]))
    transform.squeeze = true;
  return content;
}

}  // namespace

ImageDataset::ImageDataset(ImageContent content) : LabelledImages(squeezed(std::move(content))) {
  const std::vector<std::int64_t>& shape = content_.shape;
  VCAS_CHECK(std::ssize(content_.pixels) == size() * shape[0] * shape[1] * shape[2],
             "pixels do not match labels and shape");
}

void ImageDataset::append(std::int64_t index, const ItemDraw& draw, Batch& out) const {
  VCAS_CHECK(index >= 0 && index < size(), fmt::format("item {} of {}", index, size()));
  const std::vector<std::int64_t>& shape = content_.shape;
  const std::uint8_t* pixels = content_.pixels.data() + index * shape[0] * shape[1] * shape[2];
  transform_.append(planar_view(pixels, shape[0], shape[1], shape[2]), index, draw, out.values);
}

}  // namespace vcas
