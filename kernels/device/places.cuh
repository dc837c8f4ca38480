// Where the numbers of a product's factor lie: what its row says and what its column says, each
// found once.
//
// Entry (row, column) is data[row.first * stride + column.offset], or 0 where the row lacks a tap
// of the column. Rows as they are have one tap.
#pragma once

#include "kernels/device/launch.cuh"
#include "kernels/ops/patches.h"

namespace vcas::VCAS_DEVICE {

// Taps (ky, kx) as bits: ky from bit 0 on, kx from bit 16 on. No row has the last one.
constexpr int kFirstAcross = 16;
constexpr std::uint32_t kNoTap = 1u << 31;
static_assert(Patches::kMostDirect < kFirstAcross);
__device__ constexpr std::uint32_t tap_bits(int ky, int kx) {
  return 1u << ky | 1u << (kFirstAcross + kx);
}

struct alignas(8) RowPlace {
  std::int32_t first;  // row of data with tap (0, 0), perhaps of none
  std::uint32_t taps;  // inside; 0: no such row
};

struct ColumnPlace {
  std::int32_t offset;  // of the tap and the channel
  std::uint32_t tap;

  __device__ bool inside(const RowPlace& row) const { return (tap & ~row.taps) == 0; }
};

// Row r of an image's pixels, or of the outputs over them: numbers of rows have 32 bits, as
// divisions of 64 would be calls.
struct ImagePlace {
  std::int32_t item, y, x;

  __device__ ImagePlace(std::int64_t r, std::int32_t height, std::int32_t width) {
    const auto own = static_cast<std::uint32_t>(r), across = static_cast<std::uint32_t>(width);
    const std::uint32_t line = own / across, of = line / static_cast<std::uint32_t>(height);
    item = static_cast<std::int32_t>(of);
    y = static_cast<std::int32_t>(line - of * static_cast<std::uint32_t>(height));
    x = static_cast<std::int32_t>(own - line * across);
  }
};

// Patches with what kernels would compute again and again.
struct PatchSizes {
  std::int32_t height = 0, width = 0;  // of the pixels; 0: rows as they are
  std::int32_t kernel = 1, stride = 1, padding = 0;
  std::int32_t out_height = 0, out_width = 0;

  PatchSizes() = default;
  explicit PatchSizes(const Patches& of)
      : height(of.height),
        width(of.width),
        kernel(of.kernel),
        stride(of.stride),
        padding(of.padding),
        out_height(of ? static_cast<std::int32_t>(of.out_height()) : 0),
        out_width(of ? static_cast<std::int32_t>(of.out_width()) : 0) {}

  // Patch r, whose taps are pixels.
  __device__ RowPlace patch(std::int32_t r) const {
    if (height == 0) return {r, tap_bits(0, 0)};
    const ImagePlace place(r, out_height, out_width);
    const std::int32_t y = place.y * stride - padding, x = place.x * stride - padding;
    return {(place.item * height + y) * width + x, range(-y, height - y) | range(-x, width - x)
                                                                               << kFirstAcross};
  }
  // Column c of patches of so many channels.
  __device__ ColumnPlace column(std::int32_t c, std::int32_t channels) const {
    if (height == 0) return {c, tap_bits(0, 0)};
    const std::int32_t tap = c / channels, ky = tap / kernel, kx = tap - ky * kernel;
    return {(ky * width + kx) * channels + (c - tap * channels), tap_bits(ky, kx)};
  }

  // Pixel (y, x) of an item, whose taps are the patches that have it there.
  __device__ RowPlace pixel(std::int32_t item, std::int32_t y, std::int32_t x) const {
    const std::int32_t line = (y + padding) / stride, place = (x + padding) / stride;
    RowPlace out{(item * out_height + line) * out_width + place, 0};
    for (int k = 0; k < kernel; ++k) {
      out.taps |= patch_at(y + padding - k, out_height) << k;
      out.taps |= patch_at(x + padding - k, out_width) << (kFirstAcross + k);
    }
    return out;
  }

 private:
  // Bits from `begin` to `end`, of a tap each.
  __device__ std::uint32_t range(std::int32_t begin, std::int32_t end) const {
    const std::int32_t low = max(begin, 0), high = min(end, kernel);
    return high > low ? (1u << high) - (1u << low) : 0;
  }
  // Whether a patch of `many` begins there.
  __device__ std::uint32_t patch_at(std::int32_t begin, std::int32_t many) const {
    return begin >= 0 && begin % stride == 0 && begin / stride < many;
  }
};

}  // namespace vcas::VCAS_DEVICE
