#include "data/resample.h"

#include <algorithm>

#include "core/safetensors.h"
#include "tests/data/data_files.h"

using namespace vcas;

namespace {

Bytes resized(const ImageView& image, std::int64_t height, std::int64_t width,
              Interpolation interpolation) {
  return resample(image, height, width, {0, 0, height, width}, interpolation);
}

Bytes pixels_of(const StoredTensor& tensor) {
  Bytes pixels;
  for (const std::byte byte : tensor.bytes) pixels.push_back(std::to_integer<std::uint8_t>(byte));
  return pixels;
}

}  // namespace

TEST_CASE("resized images are those of Pillow 12, bit for bit", "[resample]") {
  const SafetensorsFile golden(std::string(VCAS_SOURCE_DIR) + "/tests/golden/resize.safetensors");
  int compared = 0;
  for (const StoredTensor& want : golden.tensors()) {
    const std::size_t space = want.name.find(' ');
    if (space == std::string::npos) continue;
    CAPTURE(want.name);
    const StoredTensor* image = golden.find(want.name.substr(0, space));
    REQUIRE(image);
    const Bytes pixels = pixels_of(*image);
    const Interpolation interpolation = want.name.substr(space + 1) == "bicubic"
                                            ? Interpolation::kBicubic
                                            : Interpolation::kBilinear;
    CHECK(resized(planar_view(pixels.data(), 1, image->shape[0], image->shape[1]), want.shape[0],
                  want.shape[1], interpolation) == pixels_of(want));
    ++compared;
  }
  CHECK(compared == 10);
}

TEST_CASE("a window is that part of the whole, and channels may lie in any order", "[resample]") {
  Bytes planar(3 * 11 * 17);
  for (std::size_t i = 0; i < planar.size(); ++i) planar[i] = static_cast<std::uint8_t>(i * i * 7);
  Bytes interleaved;
  for (std::size_t i = 0; i < 11 * 17; ++i)
    for (std::size_t channel = 0; channel < 3; ++channel)
      interleaved.push_back(planar[channel * 11 * 17 + i]);
  const ImageView view = planar_view(planar.data(), 3, 11, 17);
  const Bytes whole = resized(view, 23, 8, Interpolation::kBicubic);
  CHECK(resized(interleaved_view(interleaved.data(), 3, 11, 17), 23, 8, Interpolation::kBicubic) ==
        whole);
  const Bytes part = resample(view, 23, 8, {9, 2, 10, 5}, Interpolation::kBicubic);
  REQUIRE(part.size() == 3 * 10 * 5);
  for (std::size_t channel = 0; channel < 3; ++channel)
    for (std::size_t y = 0; y < 10; ++y)
      for (std::size_t x = 0; x < 5; ++x)
        CHECK(part[(channel * 10 + y) * 5 + x] == whole[(channel * 23 + y + 9) * 8 + x + 2]);
}

TEST_CASE("a box of an image is resized as if the rest were not there", "[resample]") {
  Bytes pixels(12 * 12);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * 31);
  const ImageView part = planar_view(pixels.data(), 1, 12, 12).part({3, 5, 6, 4});
  Bytes cut;
  for (std::int64_t y = 0; y < 6; ++y)
    for (std::int64_t x = 0; x < 4; ++x) cut.push_back(pixels[(y + 3) * 12 + x + 5]);
  CHECK(resized(part, 9, 9, Interpolation::kBicubic) ==
        resized(planar_view(cut.data(), 1, 6, 4), 9, 9, Interpolation::kBicubic));
}
