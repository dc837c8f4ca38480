// Patches side by side, as a product reads them, and their gradients added up in the pixels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/ops/patches.h"

namespace vcas {

// body(line, first, last, pixel) for the lines of the kernel that have pixels inside, of patch r:
// its taps [first, last) of that line lie side by side from row `pixel` of x on.
template <class Body>
void for_lines(const Patches& patches, std::int64_t r, const Body& body) {
  const std::int64_t place = r % patches.out_rows();
  const std::int64_t top = place / patches.out_width() * patches.stride - patches.padding;
  const std::int64_t left = place % patches.out_width() * patches.stride - patches.padding;
  const std::int64_t first = std::clamp<std::int64_t>(-left, 0, patches.kernel);
  const std::int64_t last = std::clamp<std::int64_t>(patches.width - left, first, patches.kernel);
  const std::int64_t image = r / patches.out_rows() * patches.height;
  for (std::int64_t line = 0; line < patches.kernel; ++line) {
    const bool inside = top + line >= 0 && top + line < patches.height;
    body(line, first, inside ? last : first, (image + top + line) * patches.width + left + first);
  }
}

// y[i] = columns [begin, begin + width) of patch index[first + i] of x, for `rows` rows i. Without
// an index it is patch first + i. Pixels have `channels` values.
template <class T>
void copy_patches(T* y, const T* x, std::int64_t channels, const Patches& patches,
                  const std::int32_t* index, std::int64_t first, std::int64_t rows,
                  std::int64_t begin, std::int64_t width) {
  const std::int64_t end = begin + width, line_values = patches.kernel * channels;
  for (std::int64_t i = 0; i < rows; ++i, y += width) {
    const auto write = [&](std::int64_t line, std::int64_t from_tap, std::int64_t to_tap,
                           std::int64_t pixel) {
      const std::int64_t line_begin = line * line_values;
      const auto inside = [&](std::int64_t column) { return std::clamp(column, begin, end); };
      const std::int64_t start = inside(line_begin), stop = inside(line_begin + line_values);
      const std::int64_t from = inside(line_begin + from_tap * channels);
      const std::int64_t to = std::max(from, inside(line_begin + to_tap * channels));
      std::fill(y + (start - begin), y + (from - begin), T(0));
      const T* source = x + pixel * channels + (from - line_begin - from_tap * channels);
      if (to > from) std::copy_n(source, to - from, y + (from - begin));
      std::fill(y + (to - begin), y + (stop - begin), T(0));
    };
    for_lines(patches, index ? index[first + i] : first + i, write);
  }
}

// Adds the gradients of patches [first, first + rows) to those of the pixels they hold.
// add(y, a, b, n) is that of Loops.
template <class T, class Add>
void add_patches(const Add& add, T* dx, const T* dpatches, std::int64_t channels,
                 const Patches& patches, std::int64_t first, std::int64_t rows) {
  const std::int64_t values = patches.taps() * channels;
  for (std::int64_t i = 0; i < rows; ++i, dpatches += values) {
    const auto add_line = [&](std::int64_t line, std::int64_t from_tap, std::int64_t to_tap,
                              std::int64_t pixel) {
      T* to = dx + pixel * channels;
      add(to, to, dpatches + (line * patches.kernel + from_tap) * channels,
          (to_tap - from_tap) * channels);
    };
    for_lines(patches, first + i, add_line);
  }
}

}  // namespace vcas
