// Some patches of images: where their lines lie, or copies of those that leave the image.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/loops.h"
#include "kernels/ops/patches.h"

namespace vcas {

// A size of workspace in elements, so that what follows begins on a cache line.
constexpr std::int64_t on_lines(std::int64_t elements) { return (elements + 15) / 16 * 16; }

// The rows x columns patches of an item. Patch (i, j) has lines x taps pixels of the image: those
// from line top + i * step and pixel left + j * step on. Pixels outside are zero.
struct PatchGrid {
  std::int64_t height, width;  // of the image
  std::int64_t rows, columns;
  std::int64_t step, top, left;
  std::int64_t lines, taps;

  std::int64_t cells() const { return rows * columns; }

  // Patches index[first + i], for i < count, in stretches that lie side by side in a row. Calls
  // body(i, n, item, row, column) for the n patches from number i on.
  // Without an index they are first + i.
  template <class Body>
  void for_stretches(const std::int32_t* index, std::int64_t first, std::int64_t count,
                     const Body& body) const {
    for (std::int64_t i = 0, n = 1; i < count; i += n) {
      const std::int64_t r = index ? index[first + i] : first + i;
      const std::int64_t most = std::min(count - i, columns - r % columns);
      for (n = index ? 1 : most; n < most && index[first + i + n] == r + n;) ++n;
      body(i, n, r / cells(), r / columns % rows, r % columns);
    }
  }
};

inline PatchGrid output_grid(const Patches& patches) {
  return {.height = patches.height,
          .width = patches.width,
          .rows = patches.out_height(),
          .columns = patches.out_width(),
          .step = patches.stride,
          .top = -patches.padding,
          .left = -patches.padding,
          .lines = patches.kernel,
          .taps = patches.kernel};
}

// Workspace for kRows patches at a time, of pixels with `channels` values.
template <class T>
class PatchPanel {
 public:
  static constexpr std::int64_t kRows = 256;
  // The elements of T that a pointer for each row takes.
  static constexpr std::int64_t kPointers =
      kRows * std::int64_t{sizeof(T*)} / std::int64_t{sizeof(T)};

  // The size of `space` in elements of T.
  static std::int64_t space(const PatchGrid& grid, std::int64_t channels) {
    return kPointers * grid.lines + (kRows * grid.lines + 1) * grid.taps * channels;
  }
  PatchPanel(const PatchGrid& grid, std::int64_t channels, T* space)
      : grid_(grid),
        channels_(channels),
        line_(reinterpret_cast<const T**>(space)),
        zeros_(space + kPointers * grid.lines) {
    std::fill_n(zeros_, run(), T(0));
  }

  std::int64_t run() const { return grid_.taps * channels_; }

  // Patches index[first + i] of x, for i < count <= kRows. Without an index they are first + i.
  // The lines hold until the next call.
  PatchLines<T> lines(const T* x, const std::int32_t* index, std::int64_t first,
                      std::int64_t count) const {
    T* copy = zeros_ + run();
    grid_.for_stretches(index, first, count, [&](auto i, auto n, auto item, auto row, auto column) {
      const std::int64_t y = grid_.top + row * grid_.step, left = grid_.left + column * grid_.step;
      // The patches [begin, end) of these leave the image on no side.
      const std::int64_t begin = std::min(left < 0 ? pieces(-left, grid_.step) : 0, n);
      const std::int64_t room = grid_.width - grid_.taps - left + grid_.step;
      const std::int64_t end = std::clamp<std::int64_t>(room / grid_.step, begin, n);
      for (std::int64_t line = 0; line < grid_.lines; ++line) {
        const T** to = line_ + line * kRows + i;
        if (y + line < 0 || y + line >= grid_.height) {
          std::fill_n(to, n, zeros_);
          continue;
        }
        const T* image_line = x + (item * grid_.height + y + line) * grid_.width * channels_;
        const auto copy_edges = [&](std::int64_t from, std::int64_t last) {
          for (std::int64_t p = from; p < last; ++p) {
            to[p] = copy;
            copy = copy_line(copy, image_line, left + p * grid_.step);
          }
        };
        copy_edges(0, begin);
        for (std::int64_t p = begin; p < end; ++p)
          to[p] = image_line + (left + p * grid_.step) * channels_;
        copy_edges(end, n);
      }
    });
    return {line_, kRows, count, grid_.lines, run()};
  }

 private:
  // The taps from pixel `left` of a line of the image on, of which some are outside. Returns their
  // end in `to`.
  T* copy_line(T* to, const T* image_line, std::int64_t left) const {
    const std::int64_t before = std::clamp<std::int64_t>(-left, 0, grid_.taps);
    const std::int64_t last = std::clamp<std::int64_t>(grid_.width - left, before, grid_.taps);
    to = std::fill_n(to, before * channels_, T(0));
    to = std::copy_n(image_line + (left + before) * channels_, (last - before) * channels_, to);
    return std::fill_n(to, (grid_.taps - last) * channels_, T(0));
  }

  PatchGrid grid_;
  std::int64_t channels_;
  const T** line_;
  T* zeros_;
};

}  // namespace vcas
