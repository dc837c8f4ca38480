// How a convolution reads rows of pixels (docs/kernels.md).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/host_device.h"

namespace vcas {

// Row (n, oy, ox) of a convolution is a patch: kernel x kernel pixels of item n, line by line.
// They begin at (oy * stride - padding, ox * stride - padding). The C values of a pixel lie side by
// side. Pixels outside are zero. An item has height * width rows of pixels, line by line.
struct Patches {
  std::int32_t height = 0, width = 0;  // of the input; 0: rows as they are
  std::int32_t kernel = 1, stride = 1, padding = 0;

  explicit operator bool() const { return height != 0; }
  VCAS_HOST_DEVICE std::int64_t out_height() const {
    return (height + 2 * padding - kernel) / stride + 1;
  }
  VCAS_HOST_DEVICE std::int64_t out_width() const {
    return (width + 2 * padding - kernel) / stride + 1;
  }
  VCAS_HOST_DEVICE std::int64_t in_rows() const { return std::int64_t{height} * width; }
  VCAS_HOST_DEVICE std::int64_t out_rows() const { return out_height() * out_width(); }
  VCAS_HOST_DEVICE std::int64_t taps() const { return std::int64_t{kernel} * kernel; }

  // The pixel of row `r` at tap (ky, kx), as a row of the input; -1: outside.
  VCAS_HOST_DEVICE std::int64_t pixel(std::int64_t r, std::int64_t ky, std::int64_t kx) const {
    const std::int64_t place = r % out_rows();
    const std::int64_t y = place / out_width() * stride - padding + ky;
    const std::int64_t x = place % out_width() * stride - padding + kx;
    if (y < 0 || y >= height || x < 0 || x >= width) return -1;
    return (r / out_rows() * height + y) * width + x;
  }
  // The inverse: the row of an item, of the rows of its output, that has `pixel` at tap (ky, kx).
  // -1: none. In 32 bits: devices divide 64 by a function.
  VCAS_HOST_DEVICE std::int64_t row_with(std::int64_t pixel, std::int64_t ky,
                                         std::int64_t kx) const {
    const auto of = static_cast<std::int32_t>(pixel);
    const std::int32_t y = of / width + padding - static_cast<std::int32_t>(ky);
    const std::int32_t x = of % width + padding - static_cast<std::int32_t>(kx);
    if (y < 0 || x < 0 || y % stride != 0 || x % stride != 0) return -1;
    if (y / stride >= out_height() || x / stride >= out_width()) return -1;
    return y / stride * out_width() + x / stride;
  }

  // Whether a device's products read pixels where they lie: they and the other factor's rows, of
  // so many bytes, are copied 16 bytes at a time. Else patches are copied apart.
  static constexpr std::int32_t kMostDirect = 15;
  bool direct(std::size_t pixel_bytes, std::size_t row_bytes) const {
    return kernel <= kMostDirect && pixel_bytes % 16 == 0 && row_bytes % 16 == 0;
  }
  // The numbers of a copied row, of so many bytes each: fast products want whole 16 bytes.
  static std::int64_t padded(std::int64_t values, std::size_t bytes) {
    const auto each = static_cast<std::int64_t>(16 / bytes);
    return (values + each - 1) / each * each;
  }
  // They are copied so many rows at a time: as have 2^23 numbers.
  static std::int64_t rows_at_once(std::int64_t values) {
    constexpr std::int64_t kValues = std::int64_t{8} << 20;
    return std::max<std::int64_t>(kValues / std::max<std::int64_t>(values, 1), 1);
  }
  // The same in whole items.
  std::int64_t items_at_once(std::int64_t values) const {
    return std::max<std::int64_t>(rows_at_once(values) / out_rows(), 1);
  }
};

// How many pieces of `most` there are in `count`, at least one.
inline std::int64_t pieces(std::int64_t count, std::int64_t most) {
  return std::max<std::int64_t>((count + most - 1) / most, 1);
}

}  // namespace vcas
