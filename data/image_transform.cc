#include "data/image_transform.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace vcas {

ImageTransform::ImageTransform(ImageTransformOptions options, std::int64_t channels,
                               std::int64_t height, std::int64_t width)
    : options_(std::move(options)),
      channels_(channels),
      height_(options_.size > 0 ? options_.size : height),
      width_(options_.size > 0 ? options_.size : width) {
  VCAS_CHECK(height_ > 0 && width_ > 0, "images without a size");
  const auto& [size, short_side, squeeze, interpolation, means, deviations] = options_;
  if (std::ssize(means) != channels || std::ssize(deviations) != channels)
    throw Error(ExitCode::kBadConfig,
                fmt::format("mean has {} values and std has {}, but the images have {} channels",
                            means.size(), deviations.size(), channels),
                "give data.image.mean and data.image.std one value a channel; where they come from "
                "model.pretrained, its model reads other channels than the data have");
  if (short_side != 0 && (size == 0 || short_side < size))
    throw Error(ExitCode::kBadConfig,
                fmt::format("data.image.short_side is {}, and data.image.size, which is cut out of "
                            "it, is {}",
                            short_side, size),
                size == 0 ? "set data.image.size, at most the short side"
                          : "raise data.image.short_side to that size, or above it");
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    const float mean = means[channel];
    const float std = deviations[channel];
    if (!std::isfinite(mean) || !std::isfinite(std) || !(std > 0))
      throw Error(ExitCode::kBadConfig,
                  fmt::format("data.image.mean {} of channel {} must be finite, and data.image.std "
                              "{} above 0",
                              mean, channel, std),
                  "where they come from model.pretrained, its preprocessor_config.json has them");
    auto& table = tables_.emplace_back();
    for (int pixel = 0; pixel < 256; ++pixel)
      table[pixel] = (static_cast<float>(pixel) / 255.0f - mean) / std;
  }
}

// Empty where the image has the right size already.
std::vector<std::uint8_t> ImageTransform::resized(const ImageView& image, std::int64_t item,
                                                  const ItemDraw& draw) const {
  const ImageBox whole{0, 0, height_, width_};
  if (const auto& crop = draw.augment.resized_crop) {
    const ImageBox box =
        draw_resized_crop(*crop, image.height, image.width, draw.seed, draw.epoch, item);
    return resample(image.part(box), height_, width_, whole, options_.interpolation);
  }
  // As torchvision's Resize and CenterCrop: the long side is rounded down, a half to even.
  const std::int64_t side = options_.short_side > 0 ? options_.short_side : options_.size;
  const std::int64_t short_side = std::min(image.height, image.width);
  const auto resized_side = [&](std::int64_t before, std::int64_t fixed) {
    if (side == 0) return fixed;
    return options_.squeeze ? side : side * before / short_side;
  };
  const std::int64_t height = resized_side(image.height, height_);
  const std::int64_t width = resized_side(image.width, width_);
  if (image.height == height_ && image.width == width_ && height == height_ && width == width_)
    return {};
  const auto middle = [](std::int64_t outer, std::int64_t inner) -> std::int64_t {
    return std::lrint(static_cast<double>(outer - inner) / 2);
  };
  return resample(image, height, width,
                  {middle(height, height_), middle(width, width_), height_, width_},
                  options_.interpolation);
}

void ImageTransform::append(const ImageView& image, std::int64_t item, const ItemDraw& draw,
                            std::vector<float>& out) const {
  VCAS_CHECK(image.channels == channels_,
             fmt::format("{} channels, expected {}", image.channels, channels_));
  const std::int64_t cutout = draw.augment.cutout, most = std::min(height_, width_) - 1;
  if (cutout < 0 || cutout > most)
    throw Error(ExitCode::kBadConfig,
                fmt::format("cutout must be from 0 to {} for images of {} x {}, got {}", most,
                            height_, width_, cutout),
                "a larger square can be the whole image");
  const CropFlip change = draw_crop_flip(draw.augment, draw.seed, draw.epoch, item);
  ImageView view = image;
  std::vector<std::uint8_t> moved;
  if (change.dy != 0 || change.dx != 0) {
    moved = shifted(view, change);
    view = planar_view(moved.data(), view.channels, view.height, view.width);
  }
  const std::vector<std::uint8_t> pixels = resized(view, item, draw);
  if (!pixels.empty()) view = planar_view(pixels.data(), channels_, height_, width_);
  std::size_t at = out.size();
  out.resize(at + static_cast<std::size_t>(channels_ * height_ * width_));
  const std::int64_t step = change.flip ? -view.pixel_stride : view.pixel_stride;
  for (std::int64_t channel = 0; channel < channels_; ++channel) {
    const auto& table = tables_[channel];
    for (std::int64_t y = 0; y < height_; ++y) {
      const std::uint8_t* from = view.row(channel, y);
      if (change.flip) from += (width_ - 1) * view.pixel_stride;
      for (std::int64_t x = 0; x < width_; ++x) out[at++] = table[from[x * step]];
    }
  }
  if (cutout == 0) return;
  const ImageBox box = draw_cutout(cutout, height_, width_, draw.seed, draw.epoch, item);
  for (std::int64_t channel = 0; channel < channels_; ++channel)
    for (std::int64_t y = box.y; y < box.y + box.height; ++y)
      std::fill_n(out.end() - ((channels_ - channel) * height_ - y) * width_ + box.x, box.width,
                  0.0f);
}

}  // namespace vcas
