#include "data/augment.h"

#include <algorithm>

#include "core/philox.h"
#include "data/dataset.h"

namespace vcas {

CropFlip draw_crop_flip(const AugmentOptions& options, std::uint64_t seed, std::uint64_t epoch,
                        std::int64_t item) {
  std::uint32_t words[4];
  philox_draw(data_address(seed, DataSite::kAugment, epoch), static_cast<std::uint64_t>(item),
              words);
  const std::int64_t padding = options.crop_padding;
  const auto choices = static_cast<std::uint32_t>(2 * padding + 1);
  return {uniform_below(words[0], choices) - padding, uniform_below(words[1], choices) - padding,
          options.flip && (words[2] >> 31) != 0};
}

void crop_flip_channel(const std::uint8_t* pixels, std::int64_t height, std::int64_t width,
                       const CropFlip& change, const float* table, float* out) {
  for (std::int64_t y = 0; y < height; ++y, out += width) {
    const std::int64_t from_y = y + change.dy;
    if (from_y < 0 || from_y >= height) {
      std::fill_n(out, width, table[0]);
      continue;
    }
    const std::uint8_t* row = pixels + from_y * width;
    for (std::int64_t x = 0; x < width; ++x) {
      const std::int64_t from_x = (change.flip ? width - 1 - x : x) + change.dx;
      out[x] = from_x < 0 || from_x >= width ? table[0] : table[row[from_x]];
    }
  }
}

}  // namespace vcas
