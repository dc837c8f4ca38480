// Pixels of one image, wherever they lie.
#pragma once

#include <cstdint>

namespace vcas {

// Part of an image, in its pixels.
struct ImageBox {
  std::int64_t y = 0;
  std::int64_t x = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
};

// Pixel (channel, y, x) is at pixels[channel * channel_stride + y * row_stride + x * pixel_stride].
struct ImageView {
  const std::uint8_t* pixels = nullptr;
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channel_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t pixel_stride = 1;

  const std::uint8_t* row(std::int64_t channel, std::int64_t y) const {
    return pixels + channel * channel_stride + y * row_stride;
  }
  ImageView part(const ImageBox& box) const {
    ImageView view = *this;
    view.pixels += box.y * row_stride + box.x * pixel_stride;
    view.height = box.height;
    view.width = box.width;
    return view;
  }
};

// Makes it of pixels [channels, height, width].
inline ImageView planar_view(const std::uint8_t* pixels, std::int64_t channels, std::int64_t height,
                             std::int64_t width) {
  return {pixels, channels, height, width, height * width, width, 1};
}

// Makes it of pixels [height, width, channels].
inline ImageView interleaved_view(const std::uint8_t* pixels, std::int64_t channels,
                                  std::int64_t height, std::int64_t width) {
  return {pixels, channels, height, width, 1, width * channels, channels};
}

}  // namespace vcas
