#include "data/augment.h"

#include <algorithm>
#include <cmath>

#include "core/philox.h"
#include "data/dataset.h"

namespace vcas {

CropFlip draw_crop_flip(const AugmentOptions& options, std::uint64_t seed, std::uint64_t epoch,
                        std::int64_t item) {
  std::uint32_t words[4];
  philox_draw(data_address(seed, DataSite::kAugment, epoch), item, words);
  const std::int64_t padding = options.crop_padding;
  const auto choices = static_cast<std::uint32_t>(2 * padding + 1);
  return {uniform_below(words[0], choices) - padding, uniform_below(words[1], choices) - padding,
          options.flip && (words[2] >> 31) != 0};
}

ImageBox draw_resized_crop(const ResizedCropOptions& options, std::int64_t height,
                           std::int64_t width, std::uint64_t seed, std::uint64_t epoch,
                           std::int64_t item) {
  constexpr std::uint64_t kTries = 10;
  constexpr std::uint64_t kSpacing = 16;  // of two items' numbers
  const PhiloxAddress address = data_address(seed, DataSite::kResizedCrop, epoch);
  const auto between = [](double low, double high, std::uint32_t bits) {
    return low + (high - low) * double{uniform_from_bits(bits)};
  };
  const auto rows = static_cast<double>(height);
  const auto columns = static_cast<double>(width);
  for (std::uint64_t attempt = 0; attempt < kTries; ++attempt) {
    std::uint32_t words[4];
    philox_draw(address, kSpacing * static_cast<std::uint64_t>(item) + attempt, words);
    const double area = rows * columns * between(options.scale_low, options.scale_high, words[0]);
    const double ratio =
        std::exp(between(std::log(options.ratio_low), std::log(options.ratio_high), words[1]));
    const std::int64_t w = std::lrint(std::sqrt(area * ratio));
    const std::int64_t h = std::lrint(std::sqrt(area / ratio));
    if (w < 1 || w > width || h < 1 || h > height) continue;
    return {uniform_below(words[2], static_cast<std::uint32_t>(height - h + 1)),
            uniform_below(words[3], static_cast<std::uint32_t>(width - w + 1)), h, w};
  }
  std::int64_t h = height;
  std::int64_t w = width;
  if (columns < options.ratio_low * rows) h = std::lrint(columns / options.ratio_low);
  if (columns > options.ratio_high * rows) w = std::lrint(rows * options.ratio_high);
  w = std::max<std::int64_t>(1, w);
  h = std::max<std::int64_t>(1, h);
  return {(height - h) / 2, (width - w) / 2, h, w};
}

ImageBox draw_cutout(std::int64_t side, std::int64_t height, std::int64_t width, std::uint64_t seed,
                     std::uint64_t epoch, std::int64_t item) {
  std::uint32_t words[4];
  philox_draw(data_address(seed, DataSite::kCutout, epoch), item, words);
  const std::int64_t y = uniform_below(words[0], static_cast<std::uint32_t>(height)) - side / 2;
  const std::int64_t x = uniform_below(words[1], static_cast<std::uint32_t>(width)) - side / 2;
  const std::int64_t top = std::max<std::int64_t>(y, 0), left = std::max<std::int64_t>(x, 0);
  return {top, left, std::min(y + side, height) - top, std::min(x + side, width) - left};
}

std::vector<std::uint8_t> shifted(const ImageView& image, const CropFlip& change) {
  std::vector<std::uint8_t> out(image.channels * image.height * image.width);
  std::uint8_t* to = out.data();
  for (std::int64_t channel = 0; channel < image.channels; ++channel) {
    for (std::int64_t y = change.dy; y < image.height + change.dy; ++y, to += image.width) {
      if (y < 0 || y >= image.height) continue;
      const std::uint8_t* row = image.row(channel, y);
      const std::int64_t begin = std::clamp<std::int64_t>(-change.dx, 0, image.width);
      const std::int64_t end = std::clamp<std::int64_t>(image.width - change.dx, 0, image.width);
      for (std::int64_t x = begin; x < end; ++x) to[x] = row[(x + change.dx) * image.pixel_stride];
    }
  }
  return out;
}

}  // namespace vcas
