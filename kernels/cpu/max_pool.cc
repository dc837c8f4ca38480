#include "kernels/cpu/compute.h"

namespace vcas {

void compute(CpuContext& cpu, const MaxPoolForward& args) {
  const Patches& patches = args.patches;
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t width = args.y.width();
    cpu.rows(args.y.rows(), width * patches.taps(), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        T* y = args.y.ptr<T>() + r * width;
        auto* tap = args.tap.ptr<std::int32_t>() + r * width;
        bool first = true;
        for (std::int32_t t = 0; t < patches.taps(); ++t) {
          const std::int64_t pixel = patches.pixel(r, t / patches.kernel, t % patches.kernel);
          if (pixel < 0) continue;
          const T* x = args.x.ptr<T>() + pixel * width;
          for (std::int64_t c = 0; c < width; ++c) {
            const bool larger = first || x[c] > y[c] || (x[c] != x[c] && y[c] == y[c]);
            y[c] = larger ? x[c] : y[c];
            tap[c] = larger ? t : tap[c];
          }
          first = false;
        }
      }
    });
  });
}

void compute(CpuContext& cpu, const MaxPoolBackward& args) {
  const Patches& patches = args.patches;
  with_type(args.dx.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t width = args.dx.width(), pixels = patches.in_rows();
    const auto* row = args.row.ptr<std::int32_t>();
    const auto* taps = args.tap_full.ptr<std::int32_t>();
    cpu.rows(args.dx.rows(), width * patches.taps(), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) {
        T* dx = args.dx.ptr<T>() + p * width;
        std::fill_n(dx, width, T(0));
        for (std::int32_t t = 0; t < patches.taps(); ++t) {
          const std::int64_t place =
              patches.row_with(p % pixels, t / patches.kernel, t % patches.kernel);
          if (place < 0) continue;
          const std::int64_t r = p / pixels * patches.out_rows() + place;
          const std::int32_t* tap = taps + (row ? row[r] : r) * width;
          const T* dy = args.dy.ptr<T>() + r * width;
          for (std::int64_t c = 0; c < width; ++c) dx[c] += tap[c] == t ? dy[c] : T(0);
        }
      }
    });
  });
}

}  // namespace vcas
