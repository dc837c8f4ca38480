#include "data/dataset.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "core/error.h"

namespace vcas {

std::vector<std::string> numbered_classes(std::int64_t classes) {
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < classes; ++i) names.push_back(std::to_string(i));
  return names;
}

RelabelledDataset::RelabelledDataset(std::unique_ptr<Dataset> inner, std::vector<std::int32_t> ids)
    : inner_(std::move(inner)), ids_(std::move(ids)), class_names_(ids_.size()) {
  VCAS_CHECK(std::ssize(ids_) == inner_->classes(), "one number for each class");
  for (std::size_t i = 0; i < ids_.size(); ++i)
    class_names_.at(static_cast<std::size_t>(ids_[i])) = inner_->class_names()[i];
}

ImageDataset::ImageDataset(ImageContent content) : content_(std::move(content)) {
  const ImageContent& c = content_;
  VCAS_CHECK(std::ssize(c.pixels) == size() * c.channels * c.height * c.width,
             "pixels do not match labels and shape");
  if (std::ssize(c.mean) != c.channels || std::ssize(c.std) != c.channels) {
    throw Error(ExitCode::kBadConfig,
                fmt::format("mean has {} values and std has {}, but the images have {} channels",
                            c.mean.size(), c.std.size(), c.channels));
  }
  for (std::int64_t channel = 0; channel < c.channels; ++channel) {
    const float mean = c.mean[channel];
    const float std = c.std[channel];
    if (!std::isfinite(mean) || !std::isfinite(std) || !(std > 0)) {
      throw Error(
          ExitCode::kBadConfig,
          fmt::format("channel {}: mean {} must be finite and std {} above 0", channel, mean, std));
    }
    auto& table = tables_.emplace_back();
    for (int pixel = 0; pixel < 256; ++pixel) {
      table[pixel] = (static_cast<float>(pixel) / 255.0f - mean) / std;
    }
  }
}

void ImageDataset::append(std::int64_t index, const ItemDraw& draw, Batch& out) const {
  VCAS_CHECK(index >= 0 && index < size(), fmt::format("item {} of {}", index, size()));
  const CropFlip change = draw_crop_flip(draw.augment, draw.seed, draw.epoch, index);
  const std::int64_t channel_size = content_.height * content_.width;
  const std::int64_t item_size = content_.channels * channel_size;
  const std::size_t begin = out.values.size();
  out.values.resize(begin + item_size);
  for (std::int64_t channel = 0; channel < content_.channels; ++channel) {
    crop_flip_channel(content_.pixels.data() + index * item_size + channel * channel_size,
                      content_.height, content_.width, change, tables_[channel].data(),
                      out.values.data() + begin + channel * channel_size);
  }
}

VectorDataset::VectorDataset(VectorContent content) : content_(std::move(content)) {
  VCAS_CHECK(std::ssize(content_.values) == size() * content_.width,
             "values do not match labels and width");
}

void VectorDataset::append(std::int64_t index, const ItemDraw&, Batch& out) const {
  VCAS_CHECK(index >= 0 && index < size(), fmt::format("item {} of {}", index, size()));
  const auto begin = content_.values.begin() + index * content_.width;
  out.values.insert(out.values.end(), begin, begin + content_.width);
}

}  // namespace vcas
