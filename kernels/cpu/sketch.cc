// Sketches: rows are added up into buckets, then one small product an item.
#include "kernels/cpu/compute.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/patch_panel.h"

namespace vcas {
namespace {

// y[c % buckets] += sign[c] x[c - first], for columns [first, first + count)
template <class T>
void add_up(T* y, std::int64_t buckets, const T* sign, const T* x, std::int64_t first,
            std::int64_t count) {
  const std::int64_t end = first + count;
  for (std::int64_t c = first, bucket = first % buckets; c < end; bucket = 0) {
    const std::int64_t beside = std::min(buckets - bucket, end - c);
    for (std::int64_t i = 0; i < beside; ++i) y[bucket + i] += sign[c + i] * x[c - first + i];
    c += beside;
  }
}

template <class T>
void item_sketch(CpuContext& cpu, const ItemSketch& args) {
  constexpr std::int64_t kRows = PatchPanel<T>::kRows;
  const std::int64_t items = args.sketch.rows(), a = args.out_buckets, b = args.in_buckets();
  const std::int64_t d = args.dy.width(), channels = args.x_full.width();
  const auto* offsets = args.offsets.ptr<std::int64_t>();
  const int slices =
      cpu.slices_for(items, args.dy.rows() * (d + args.in_sign.elements() + args.sketch.width()));
  const PatchGrid grid = output_grid(args.patches);
  const std::int64_t panel_space = args.patches ? PatchPanel<T>::space(grid, channels) : 0;
  const std::int64_t space = on_lines(panel_space + kRows * (a + b));
  T* scratch = cpu.scratch<T>(slices * space);
  const auto* row = args.row.ptr<std::int32_t>();
  const T *dy = args.dy.ptr<T>(), *x = args.x_full.ptr<T>();
  const T *out_sign = args.out_sign.ptr<T>(), *in_sign = args.in_sign.ptr<T>();
  cpu.slices(slices, items, 1, [&](std::int64_t begin, std::int64_t end, int slice) {
    T* left = scratch + slice * space + panel_space;
    T* right = left + kRows * a;
    const auto add_patches = [&](std::int64_t first, std::int64_t count) {
      const PatchPanel<T> panel(grid, channels, scratch + slice * space);
      const PatchLines<T> lines = panel.lines(x, row, first, count);
      for (std::int64_t r = 0; r < count; ++r)
        for (std::int64_t l = 0; l < lines.lines; ++l)
          add_up(right + r * b, b, in_sign, lines.line[l * lines.stride + r], l * lines.run,
                 lines.run);
    };
    for (std::int64_t n = begin; n < end; ++n)
      for (std::int64_t first = offsets[n]; first == offsets[n] || first < offsets[n + 1];
           first += kRows) {
        const std::int64_t count = std::min(kRows, offsets[n + 1] - first);
        std::fill_n(left, count * a, T(0));
        std::fill_n(right, count * b, T(0));
        for (std::int64_t r = 0; r < count; ++r)
          add_up(left + r * a, a, out_sign, dy + (first + r) * d, 0, d);
        if (args.patches) add_patches(first, count);
        for (std::int64_t r = 0; !args.patches && r < count; ++r)
          add_up(right + r * b, b, in_sign, x + (row ? row[first + r] : first + r) * channels, 0,
                 channels);
        gemm(a, b, count, Factor<T>{left, a, true}, Factor<T>{right, b},
             args.sketch.ptr<T>() + n * a * b, b, first > offsets[n]);
      }
  });
}

}  // namespace

void compute(CpuContext& cpu, const ItemSketch& args) {
  check_sketch(args);
  with_type(args.sketch.dtype, [&](auto type) { item_sketch<decltype(type)>(cpu, args); });
}

void compute(CpuContext& cpu, const Gram& args) {
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t n = args.x.rows(), width = args.x.width();
    const T* x = args.x.ptr<T>();
    cpu.slices(cpu.slices_for(n, n * width), n, 1, [&](std::int64_t begin, std::int64_t end, int) {
      gemm(end - begin, n, width, Factor<T>{x + begin * width, width}, Factor<T>{x, width, true},
           args.gram.ptr<T>() + begin * n, n, false);
    });
  });
}

}  // namespace vcas
