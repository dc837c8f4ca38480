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

  // Patches first + i, for i < count, in stretches that lie side by side in a row. Calls
  // body(i, n, item, row, column) for the n patches from number i on.
  template <class Body>
  void for_stretches(std::int64_t first, std::int64_t count, const Body& body) const {
    for (std::int64_t i = 0, n = 0; i < count; i += n) {
      const std::int64_t r = first + i;
      n = std::min(count - i, columns - r % columns);
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
    return (kPointers + kImageLine) * grid.lines + (kRows * grid.lines + 1) * grid.taps * channels;
  }
  PatchPanel(const PatchGrid& grid, std::int64_t channels, T* space)
      : grid_(grid),
        channels_(channels),
        line_(reinterpret_cast<const T**>(space)),
        image_line_(reinterpret_cast<ImageLine*>(space + kPointers * grid.lines)),
        zeros_(space + (kPointers + kImageLine) * grid.lines) {
    std::fill_n(zeros_, run(), T(0));
  }

  std::int64_t run() const { return grid_.taps * channels_; }

  // Patches index[first + i] of x, for i < count <= kRows. Without an index they are first + i.
  // The lines hold until the next call.
  PatchLines<T> lines(const T* x, const std::int32_t* index, std::int64_t first,
                      std::int64_t count) const {
    T* copy = zeros_ + run();
    std::int64_t begin = 0, end = 0;  // the patches that read image_line_
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t r = index ? index[first + i] : first + i;
      if (r < begin || r >= end) {
        begin = r - r % grid_.columns;
        end = begin + grid_.columns;
        set_image_lines(x, r / grid_.columns);
      }
      const std::int64_t left = grid_.left + (r - begin) * grid_.step;
      const bool inside = left >= 0 && left + grid_.taps <= grid_.width;
      for (std::int64_t line = 0; line < grid_.lines; ++line) {
        const ImageLine& from = image_line_[line];
        const T*& to = line_[line * kRows + i];
        if (inside || from.channels == 0) {
          to = from.begin + left * from.channels;
        } else {
          to = copy;
          copy = copy_line(copy, from.begin, left);
        }
      }
      // Patches further up have read the lines above. A grid without lines has none.
      if (grid_.lines > 0) prefetch(line_[(grid_.lines - 1) * kRows + i]);
    }
    return {line_, kRows, count, grid_.lines, run()};
  }

 private:
  struct ImageLine {
    const T* begin;
    std::int64_t channels;  // of a pixel; 0: the line is outside, and `begin` has zeros
  };
  static constexpr std::int64_t kImageLine = sizeof(ImageLine) / sizeof(T);

  // A row of patches, counted over all items, reads these lines of its image.
  void set_image_lines(const T* x, std::int64_t row) const {
    const std::int64_t item = row / grid_.rows;
    const std::int64_t top = grid_.top + row % grid_.rows * grid_.step;
    for (std::int64_t line = 0; line < grid_.lines; ++line) {
      const std::int64_t y = top + line;
      if (y < 0 || y >= grid_.height)
        image_line_[line] = {zeros_, 0};
      else
        image_line_[line] = {x + (item * grid_.height + y) * grid_.width * channels_, channels_};
    }
  }

  void prefetch(const T* line) const {
    constexpr auto kStep = std::int64_t{64 / sizeof(T)};  // a cache line
    for (std::int64_t i = 0; i < run(); i += kStep) __builtin_prefetch(line + i);
  }

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
  ImageLine* image_line_;  // [line]
  T* zeros_;
};

}  // namespace vcas
