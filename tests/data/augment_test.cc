#include "data/augment.h"

#include <cmath>
#include <map>

#include "data/dataset.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

// What becomes of an image with two channels of 2 x 3.
std::vector<int> pixels_after(const CropFlip& change) {
  const std::uint8_t pixels[12] = {1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16};
  const std::vector<std::uint8_t> out = shifted(planar_view(pixels, 2, 2, 3), change);
  return {out.begin(), out.end()};
}

}  // namespace

TEST_CASE("a crop moves pixels and pads with zero pixels", "[augment]") {
  CHECK(pixels_after({}) == std::vector<int>{1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16});
  CHECK(pixels_after({.dy = 1, .dx = -1}) ==
        std::vector<int>{0, 4, 5, 0, 0, 0, 0, 14, 15, 0, 0, 0});
  CHECK(pixels_after({.dy = -1, .dx = 2}) == std::vector<int>{0, 0, 0, 3, 0, 0, 0, 0, 0, 13, 0, 0});
  CHECK(pixels_after({.dy = 0, .dx = -4}) == std::vector<int>(12, 0));
}

TEST_CASE("crop and flip draws are uniform and differ by item, epoch and seed", "[augment]") {
  const AugmentOptions options{.crop_padding = 2, .flip = true};
  const auto key = [&](std::uint64_t seed, std::uint64_t epoch, std::int64_t item) {
    const CropFlip c = draw_crop_flip(options, seed, epoch, item);
    return (c.dy + 2) * 10 + (c.dx + 2) * 2 + c.flip;
  };
  constexpr std::int64_t kDraws = 4096;
  std::map<std::int64_t, std::int64_t> counts;
  std::int64_t same_epoch = 0;
  std::int64_t same_seed = 0;
  for (std::int64_t item = 0; item < kDraws; ++item) {
    ++counts[key(1, 0, item)];
    same_epoch += key(1, 0, item) == key(1, 1, item);
    same_seed += key(1, 0, item) == key(2, 0, item);
  }
  CHECK(counts.size() == 50);
  CHECK(counts.begin()->first == 0);
  CHECK(counts.rbegin()->first == 49);
  constexpr double kWant = kDraws / 50.0;
  double chi_square = 0;
  for (const auto& [choice, count] : counts) {
    const double difference = static_cast<double>(count) - kWant;
    chi_square += difference * difference / kWant;
  }
  CHECK(std::abs(chi_square - 49) < 5 * std::sqrt(2 * 49.0));
  CHECK(std::abs(static_cast<double>(same_epoch) - kWant) < 5 * std::sqrt(kWant));
  CHECK(std::abs(static_cast<double>(same_seed) - kWant) < 5 * std::sqrt(kWant));
}

TEST_CASE("draws for one image do not depend on each other", "[augment]") {
  const AugmentOptions options{.crop_padding = 8, .flip = true};
  constexpr std::int64_t kDraws = 4096, kSide = 17;
  double cutout_with_crop = 0;
  for (std::int64_t item = 0; item < kDraws; ++item) {
    const CropFlip change = draw_crop_flip(options, 1, 0, item);
    const ImageBox box = draw_cutout(1, kSide, kSide, 1, 0, item);
    cutout_with_crop += static_cast<double>((box.y - kSide / 2) * change.dy);
  }
  // Both have the variance (kSide^2 - 1) / 12 = 24.
  CHECK(std::abs(cutout_with_crop) < 5 * 24 * std::sqrt(kDraws));
}

TEST_CASE("nothing is drawn that was not asked for", "[augment]") {
  for (std::int64_t item = 0; item < 100; ++item) {
    const CropFlip none = draw_crop_flip({}, 1, 0, item);
    CHECK((none.dy == 0 && none.dx == 0 && !none.flip));
    const CropFlip crop = draw_crop_flip({.crop_padding = 4}, 1, 0, item);
    CHECK((std::abs(crop.dy) <= 4 && std::abs(crop.dx) <= 4 && !crop.flip));
  }
}

TEST_CASE("resized crops have the area and ratio asked for, anywhere in the image", "[augment]") {
  const ResizedCropOptions options;
  constexpr std::int64_t kHeight = 300;
  constexpr std::int64_t kWidth = 400;
  constexpr std::int64_t kDraws = 4000;
  double area = 0, log_ratio = 0, down = 0, across = 0, together = 0;
  std::int64_t same = 0, small = 0, same_seed = 0, same_item = 0, bottom = 0, right = 0;
  for (std::int64_t item = 0; item < kDraws; ++item) {
    const ImageBox box = draw_resized_crop(options, kHeight, kWidth, 1, 0, item);
    REQUIRE((box.y >= 0 && box.x >= 0 && box.height > 0 && box.width > 0));
    REQUIRE((box.y + box.height <= kHeight && box.x + box.width <= kWidth));
    const auto height = static_cast<double>(box.height);
    const auto width = static_cast<double>(box.width);
    const double share = height * width / (kHeight * kWidth);
    // A side is rounded to a pixel, of some 85 at least.
    REQUIRE((share > 0.08 * 0.98 && share < 1.02));
    REQUIRE((width / height > 0.75 * 0.98 && width / height < 4.0 / 3 * 1.02));
    area += share;
    log_ratio += std::log(width / height);
    small += share < 0.54;
    if (box.height < kHeight) down += static_cast<double>(box.y) / (kHeight - height);
    if (box.width < kWidth) across += static_cast<double>(box.x) / (kWidth - width);
    if (box.height < kHeight && box.width < kWidth)
      together += (static_cast<double>(box.y) / (kHeight - height) - 0.5) *
                  (static_cast<double>(box.x) / (kWidth - width) - 0.5);
    bottom += box.height < kHeight && box.y + box.height == kHeight;
    right += box.width < kWidth && box.x + box.width == kWidth;
    const ImageBox later = draw_resized_crop(options, kHeight, kWidth, 1, 1, item);
    same += later.y == box.y && later.x == box.x && later.height == box.height;
    const ImageBox other = draw_resized_crop(options, kHeight, kWidth, 2, 0, item);
    same_seed += other.y == box.y && other.x == box.x && other.height == box.height;
    const ImageBox next = draw_resized_crop(options, kHeight, kWidth, 1, 0, item + 1);
    same_item += next.y == box.y && next.x == box.x && next.height == box.height;
  }
  // Shapes that do not fit are drawn again, so large areas are rarer than small ones: 200,000 draws
  // of torchvision's rule in Python gave these means.
  CHECK(std::abs(area / kDraws - 0.4326) < 0.018);
  CHECK(std::abs(log_ratio / kDraws - 0.0308) < 0.014);
  CHECK(std::abs(static_cast<double>(small) / kDraws - 0.675) < 0.037);
  CHECK(std::abs(down / kDraws - 0.5) < 0.03);
  CHECK(std::abs(across / kDraws - 0.5) < 0.03);
  CHECK(std::abs(together) < 5 * std::sqrt(kDraws) / 12);
  CHECK(same < 20);
  CHECK(same_seed < 20);
  CHECK(same_item < 20);
  CHECK(bottom > 5);
  CHECK(right > 5);
}

TEST_CASE("a resized crop that never fits is the middle with the nearest ratio", "[augment]") {
  const auto crop = [](std::int64_t height, std::int64_t width) {
    const ImageBox box = draw_resized_crop({.scale_low = 1}, height, width, 1, 0, 7);
    return std::vector<std::int64_t>{box.y, box.x, box.height, box.width};
  };
  CHECK(crop(10, 100) == std::vector<std::int64_t>{0, 43, 10, 13});
  CHECK(crop(100, 9) == std::vector<std::int64_t>{44, 0, 12, 9});
  CHECK(crop(1, 1000) == std::vector<std::int64_t>{0, 499, 1, 1});
}
