#include "data/image_transform.h"

#include <algorithm>
#include <cmath>

#include "core/config.h"
#include "data/data_kind.h"
#include "tests/data/data_files.h"

using namespace vcas;
using Catch::Matchers::WithinAbs;

namespace {

Bytes some_pixels(std::int64_t count) {
  Bytes pixels;
  for (std::int64_t i = 0; i < count; ++i) pixels.push_back(static_cast<std::uint8_t>(i * i * 5));
  return pixels;
}

// Values that are pixels again: mean 0 and a std of 1 / 255.
ImageTransformOptions raw(std::int64_t channels, ImageTransformOptions options = {}) {
  options.mean.assign(channels, 0.0f);
  options.std.assign(channels, 1.0f / 255.0f);
  return options;
}

Bytes pixels_after(const ImageTransform& transform, const ImageView& view,
                   const ItemDraw& draw = {}, std::int64_t item = 0) {
  std::vector<float> values;
  transform.append(view, item, draw, values);
  Bytes pixels;
  for (const float value : values) {
    REQUIRE_THAT(value, WithinAbs(std::round(value), 1e-4));
    pixels.push_back(static_cast<std::uint8_t>(std::lround(value)));
  }
  return pixels;
}

}  // namespace

TEST_CASE("each channel is normalised by its own mean and std", "[image]") {
  const Bytes pixels = {0, 51, 102, 255};  // two channels of 1 x 2
  const ImageTransform transform({.mean = {0.2f, 0.4f}, .std = {0.5f, 0.25f}}, 2, 1, 2);
  CHECK(transform.shape() == std::vector<std::int64_t>{2, 1, 2});
  std::vector<float> values = {7};
  transform.append(planar_view(pixels.data(), 2, 1, 2), 0, {}, values);
  REQUIRE(values.size() == 5);
  CHECK(values[0] == 7);
  CHECK_THAT(values[1], WithinAbs(-0.4, 1e-6));
  CHECK_THAT(values[2], WithinAbs(0.0, 1e-6));
  CHECK_THAT(values[3], WithinAbs(0.0, 1e-6));
  CHECK_THAT(values[4], WithinAbs(2.4, 1e-6));
}

TEST_CASE("evaluation resizes the short side and cuts the middle out", "[image]") {
  const Bytes pixels = some_pixels(3 * 31 * 49);
  const ImageView view = interleaved_view(pixels.data(), 3, 31, 49);
  // The long side becomes 20 * 49 / 31 = 31.6, and what is left of it 31 - 16 = 15: 7.5 to even.
  const ImageTransform transform(raw(3, {.size = 16, .short_side = 20}), 3);
  CHECK(transform.shape() == std::vector<std::int64_t>{3, 16, 16});
  CHECK(pixels_after(transform, view) ==
        resample(view, 20, 31, {2, 8, 16, 16}, Interpolation::kBicubic));
  const ImageTransform whole(raw(3, {.size = 16, .interpolation = Interpolation::kBilinear}), 3);
  CHECK(pixels_after(whole, view) ==
        resample(view, 16, 25, {0, 4, 16, 16}, Interpolation::kBilinear));
  CHECK(pixels_after(ImageTransform(raw(3, {.size = 16, .squeeze = true}), 3), view) ==
        resample(view, 16, 16, {0, 0, 16, 16}, Interpolation::kBicubic));
}

TEST_CASE("images of the right size keep their pixels", "[image]") {
  const Bytes pixels = some_pixels(16 * 16);
  const ImageView view = planar_view(pixels.data(), 1, 16, 16);
  CHECK(pixels_after(ImageTransform(raw(1), 1, 16, 16), view) == pixels);
  CHECK(pixels_after(ImageTransform(raw(1, {.size = 16}), 1), view) == pixels);
  CHECK(pixels_after(ImageTransform(raw(1, {.size = 16, .short_side = 16}), 1), view) == pixels);
  CHECK(pixels_after(ImageTransform(raw(1, {.size = 16, .short_side = 20}), 1), view) ==
        resample(view, 20, 20, {2, 2, 16, 16}, Interpolation::kBicubic));
}

TEST_CASE("training crops, resizes and then mirrors", "[image]") {
  const Bytes pixels = some_pixels(8 * 8);
  const ImageView view = planar_view(pixels.data(), 1, 8, 8);
  const ImageTransform transform(raw(1, {.size = 12}), 1);
  int mirrored = 0;
  for (std::int64_t item = 0; item < 16; ++item) {
    const ItemDraw draw{.seed = 3, .epoch = 2, .augment = {.crop_padding = 2, .flip = true}};
    const CropFlip change = draw_crop_flip(draw.augment, 3, 2, item);
    const Bytes moved = shifted(view, change);
    Bytes want = resample(planar_view(moved.data(), 1, 8, 8), 12, 12, {0, 0, 12, 12},
                          Interpolation::kBicubic);
    if (change.flip)
      for (auto row = want.begin(); row != want.end(); row += 12) std::reverse(row, row + 12);
    CHECK(pixels_after(transform, view, draw, item) == want);
    mirrored += change.flip;
  }
  CHECK((mirrored > 2 && mirrored < 14));

  const ItemDraw draw{.seed = 3, .epoch = 2, .augment = {.resized_crop = ResizedCropOptions{}}};
  const ImageBox box = draw_resized_crop({}, 8, 8, 3, 2, 5);
  CHECK(pixels_after(transform, view, draw, 5) ==
        resample(view.part(box), 12, 12, {0, 0, 12, 12}, Interpolation::kBicubic));
}

TEST_CASE("a short side below the size, or without one, is a configuration error", "[image]") {
  check_error([] { ImageTransform(raw(3, {.size = 224, .short_side = 200}), 3); },
              ExitCode::kBadConfig,
              "data.image.short_side is 200, and data.image.size, which is cut out of it, is 224",
              "raise data.image.short_side to that size, or above it");
  check_error([] { ImageTransform(raw(1, {.short_side = 20}), 1, 28, 28); }, ExitCode::kBadConfig,
              "data.image.short_side is 20, and data.image.size, which is cut out of it, is 0",
              "set data.image.size, at most the short side");
}

TEST_CASE("cutout erases a square, of which any pixel may be the middle", "[image]") {
  constexpr std::int64_t kHeight = 5, kWidth = 4, kSide = 3, kItems = 500;
  const Bytes pixels(2 * kHeight * kWidth, 9);
  const ImageTransform transform(raw(2), 2, kHeight, kWidth);
  std::vector<int> middles(kHeight * kWidth);
  for (std::int64_t item = 0; item < kItems; ++item) {
    const ItemDraw draw{.seed = 3, .epoch = 1, .augment = {.cutout = kSide}};
    const Bytes out =
        pixels_after(transform, planar_view(pixels.data(), 2, kHeight, kWidth), draw, item);
    CHECK(std::equal(out.begin(), out.begin() + kHeight * kWidth, out.begin() + kHeight * kWidth));
    const ImageBox box = draw_cutout(kSide, kHeight, kWidth, 3, 1, item);
    CHECK(out[static_cast<std::size_t>(box.y * kWidth + box.x)] == 0);
    int found = 0;
    for (std::int64_t middle = 0; middle < kHeight * kWidth; ++middle) {
      bool same = true;
      for (std::int64_t i = 0; i < kHeight * kWidth; ++i) {
        const bool erased = std::abs(i / kWidth - middle / kWidth) <= 1 &&
                            std::abs(i % kWidth - middle % kWidth) <= 1;
        same = same && out[static_cast<std::size_t>(i)] == (erased ? 0 : 9);
      }
      found += same;
      middles[static_cast<std::size_t>(middle)] += same;
    }
    CHECK(found == 1);
  }
  std::vector<float> values;
  const auto erase = [&](std::int64_t side) {
    transform.append(planar_view(pixels.data(), 2, kHeight, kWidth), 0,
                     {.augment = {.cutout = side}}, values);
  };
  check_error([&] { erase(kWidth); }, ExitCode::kBadConfig,
              "cutout must be from 0 to 3 for images of 5 x 4, got 4");
  check_error([&] { erase(-1); }, ExitCode::kBadConfig, "got -1");
  CHECK(values.empty());
  // Five standard errors of a binomial count.
  constexpr double kMean = kItems / 20.0;
  for (const int count : middles) CHECK(std::abs(count - kMean) < 5 * std::sqrt(kMean));
}

TEST_CASE("settings of images that no image can have are refused with what to do", "[image]") {
  struct Config {
    DataOptions data;
    void fields(Setting& v) { v.section("data", data, "What to train on."); }
  };
  const auto read = [](const std::string& settings) {
    const std::string text = R"({"data": {"type": "image_folder", "folder": "x", )" + settings;
    Config config;
    read_config(config, {.documents = {{"data.json", text + "}}"}}});
  };
  const auto fault = [&](const std::string& settings) {
    return std::string(error_of([&] { read(settings); }).what());
  };
  const auto image = [](const std::string& settings) {
    return R"("image": {"size": 8, )" + settings + "}";
  };
  CHECK_NOTHROW(read(image(R"("mean": [0, 0.5, 1], "std": [1e-3, 0.5, 1])")));
  const std::string caffe = fault(image(R"("mean": [123.675, 116, 104], "std": [58.395, 57, 57])"));
  CHECK_THAT(caffe, ContainsSubstring("data.image.mean must be from 0 to 1, got 123.675: pixels "
                                      "are from 0 to 1, so divide by 255") &&
                        ContainsSubstring("data.image.std must be at most 1, got 58.395: pixels "
                                          "are from 0 to 1, so divide by 255"));
  CHECK_THAT(fault(image(R"("mean": [-0.1, 0, 0])")), ContainsSubstring("from 0 to 1, got -0.1"));
  CHECK_NOTHROW(read(image(R"("crop_scale": [0.5, 0.5], "crop_ratio": [1, 1])")));
  CHECK_THAT(fault(image(R"("crop_scale": [0.5, 0.4], "crop_ratio": [1, 0.9])")),
             ContainsSubstring("data.image.crop_scale must be [low, high], or empty") &&
                 ContainsSubstring("data.image.crop_ratio must be [low, high]"));
  CHECK_THAT(fault(R"("crop_padding": 2)"),
             ContainsSubstring("data.crop_padding needs images of one size, as idx, cifar10 and "
                               "cifar100 have; to crop images of a folder, set "
                               "data.image.crop_scale, for example to [0.08,1]"));
}
