#include "data/augment.h"

#include <cmath>
#include <map>
#include <numeric>

#include "data/dataset.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

// Of an image with two channels of 2 x 3, through a table that leaves pixels as they are.
std::vector<float> pixels_after(const CropFlip& change) {
  const std::uint8_t pixels[12] = {1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16};
  float table[256];
  std::iota(table, table + 256, 0.0f);
  std::vector<float> out(12);
  for (const int channel : {0, 6})
    crop_flip_channel(pixels + channel, 2, 3, change, table, out.data() + channel);
  return out;
}

}  // namespace

TEST_CASE("crop and flip move pixels and pad with zero pixels", "[augment]") {
  CHECK(pixels_after({}) == std::vector<float>{1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16});
  CHECK(pixels_after({.flip = true}) ==
        std::vector<float>{3, 2, 1, 6, 5, 4, 13, 12, 11, 16, 15, 14});
  CHECK(pixels_after({.dy = 1, .dx = -1}) ==
        std::vector<float>{0, 4, 5, 0, 0, 0, 0, 14, 15, 0, 0, 0});
  CHECK(pixels_after({.dy = -1, .dx = 2}) ==
        std::vector<float>{0, 0, 0, 3, 0, 0, 0, 0, 0, 13, 0, 0});
  CHECK(pixels_after({.dx = 1, .flip = true}) ==
        std::vector<float>{0, 3, 2, 0, 6, 5, 0, 13, 12, 0, 16, 15});
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

TEST_CASE("nothing is drawn that was not asked for", "[augment]") {
  for (std::int64_t item = 0; item < 100; ++item) {
    const CropFlip none = draw_crop_flip({}, 1, 0, item);
    CHECK((none.dy == 0 && none.dx == 0 && !none.flip));
    const CropFlip crop = draw_crop_flip({.crop_padding = 4}, 1, 0, item);
    CHECK((std::abs(crop.dy) <= 4 && std::abs(crop.dx) <= 4 && !crop.flip));
  }
}
