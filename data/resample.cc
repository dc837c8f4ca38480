#include "data/resample.h"

#include <algorithm>
#include <cmath>

namespace vcas {
namespace {

constexpr int kFraction = 22;  // 8 bits of a pixel and 2 for sums above 1 are left

double radius(Interpolation interpolation) {
  return interpolation == Interpolation::kBilinear ? 1.0 : 2.0;
}

double filter(Interpolation interpolation, double x) {
  x = std::abs(x);
  if (x >= radius(interpolation)) return 0;
  if (interpolation == Interpolation::kBilinear) return 1 - x;
  constexpr double kA = -0.5;
  if (x < 1) return ((kA + 2) * x - (kA + 3)) * x * x + 1;
  return (((x - 5) * x + 8) * x - 4) * kA;
}

// Which inputs a range of outputs along one axis is made of.
struct Axis {
  struct Output {
    std::int64_t first = 0;  // input
    std::int64_t count = 0;
    std::int64_t weights_at = 0;  // in `weights`
  };
  std::vector<Output> outputs;
  std::vector<std::int32_t> weights;
};

// The first pixel whose middle is after x.
std::int64_t pixel_after(double x) { return static_cast<std::int64_t>(std::floor(x + 0.5)); }

// Outputs [begin, begin + count) of `input` pixels resized to `output`.
Axis make_axis(std::int64_t input, std::int64_t output, std::int64_t begin, std::int64_t count,
               Interpolation interpolation) {
  const double scale = static_cast<double>(input) / static_cast<double>(output);
  const double widening = std::max(1.0, scale);
  const double reach = radius(interpolation) * widening;
  Axis axis;
  std::vector<double> taps;
  for (std::int64_t i = begin; i < begin + count; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const std::int64_t first = std::max<std::int64_t>(0, pixel_after(centre - reach));
    const std::int64_t last = std::min(input, pixel_after(centre + reach));
    taps.clear();
    double sum = 0;
    for (std::int64_t from = first; from < last; ++from) {
      taps.push_back(
          filter(interpolation, (static_cast<double>(from) - centre + 0.5) * (1 / widening)));
      sum += taps.back();
    }
    axis.outputs.push_back({first, last - first, std::ssize(axis.weights)});
    for (const double tap : taps)
      axis.weights.push_back(
          static_cast<std::int32_t>(std::round(tap / sum * double{1 << kFraction})));
  }
  return axis;
}

constexpr std::int32_t kHalf = 1 << (kFraction - 1);

std::uint8_t pixel_of(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kFraction, 0, 255));
}

}  // namespace

std::vector<std::uint8_t> resample(const ImageView& image, std::int64_t height, std::int64_t width,
                                   const ImageBox& window, Interpolation interpolation) {
  const Axis down = make_axis(image.height, height, window.y, window.height, interpolation);
  const Axis across = make_axis(image.width, width, window.x, window.width, interpolation);
  // Rows that the second pass reads.
  const std::int64_t first_row = down.outputs.front().first;
  const std::int64_t rows = down.outputs.back().first + down.outputs.back().count - first_row;
  std::vector<std::uint8_t> narrow(rows * window.width);
  std::vector<std::int32_t> sums(window.width);
  std::vector<std::uint8_t> out(image.channels * window.height * window.width);
  std::uint8_t* to = out.data();
  for (std::int64_t channel = 0; channel < image.channels; ++channel) {
    std::uint8_t* narrow_to = narrow.data();
    for (std::int64_t y = first_row; y < first_row + rows; ++y) {
      const std::uint8_t* row = image.row(channel, y);
      for (const Axis::Output& output : across.outputs) {
        const std::uint8_t* from = row + output.first * image.pixel_stride;
        const std::int32_t* weights = across.weights.data() + output.weights_at;
        std::int32_t sum = kHalf;
        for (std::int64_t tap = 0; tap < output.count; ++tap)
          sum += from[tap * image.pixel_stride] * weights[tap];
        *narrow_to++ = pixel_of(sum);
      }
    }
    for (const Axis::Output& output : down.outputs) {
      std::fill(sums.begin(), sums.end(), kHalf);
      for (std::int64_t tap = 0; tap < output.count; ++tap) {
        const std::int32_t weight = down.weights[output.weights_at + tap];
        const std::uint8_t* from = narrow.data() + (output.first - first_row + tap) * window.width;
        for (std::int64_t x = 0; x < window.width; ++x) sums[x] += from[x] * weight;
      }
      to = std::transform(sums.begin(), sums.end(), to, pixel_of);
    }
  }
  return out;
}

}  // namespace vcas
