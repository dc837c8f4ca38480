// Sketches: rows are added up into buckets, then one small product an item.
#include "kernels/cpu/compute.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/patch_panel.h"

namespace vcas {
namespace {

// Rows of a matrix as patches of one line. `line` has room for them.
template <class T>
PatchLines<T> row_lines(const T** line, const T* x, std::int64_t width, const std::int32_t* row,
                        std::int64_t first, std::int64_t count) {
  for (std::int64_t r = 0; r < count; ++r) line[r] = x + (row ? row[first + r] : first + r) * width;
  return {line, count, count, 1, width};
}

template <class T>
void item_sketch(CpuContext& cpu, const ItemSketch& args) {
  constexpr std::int64_t kRows = PatchPanel<T>::kRows;
  const std::int64_t items = args.sketch.rows(), a = args.out_buckets, b = args.in_buckets();
  const std::int64_t d = args.dy.width(), channels = args.x_full.width();
  const auto* offsets = args.offsets.ptr<std::int64_t>();
  const int slices = cpu.slices_for(
      items, args.rows_summed() * (d + args.in_sign.elements() + args.sketch.width()));
  const PatchGrid grid = output_grid(args.patches);
  const std::int64_t panel_space = args.patches ? PatchPanel<T>::space(grid, channels) : 0;
  const std::int64_t space = on_lines(panel_space + kRows * (a + b));
  T* scratch = cpu.scratch<T>(slices * space);
  const auto *row = args.row.ptr<std::int32_t>(), *kept = args.kept.ptr<std::int32_t>();
  const T* scale = args.scale.ptr<T>();
  const std::int64_t drawn = args.count ? *args.count.ptr<std::int32_t>() : args.rows_summed();
  // Where the rows of an item, or of a stretch of the draw, begin.
  const auto begin_of = [&](std::int64_t n) {
    return kept ? std::min(n * args.stretch(), drawn) : offsets[n];
  };
  const T *dy = args.dy.ptr<T>(), *x = args.x_full.ptr<T>();
  const T *out_sign = args.out_sign.ptr<T>(), *in_sign = args.in_sign.ptr<T>();
  cpu.slices(slices, items, 1, [&](std::int64_t begin, std::int64_t end, int slice) {
    T* left = scratch + slice * space + panel_space;
    T* right = left + kRows * a;
    const T* line[kRows];
    std::int32_t kept_row[kRows];
    const auto lines_of_x = [&](std::int64_t first, std::int64_t count) {
      const std::int32_t* index = row;
      if (kept) {
        for (std::int64_t i = 0; i < count; ++i)
          kept_row[i] = row ? row[kept[first + i]] : kept[first + i];
        index = kept_row, first = 0;
      }
      if (!args.patches) return row_lines(line, x, channels, index, first, count);
      const PatchPanel<T> panel(grid, channels, scratch + slice * space);
      return panel.lines(x, index, first, count);
    };
    for (std::int64_t n = begin; n < end; ++n)
      for (std::int64_t first = begin_of(n); first == begin_of(n) || first < begin_of(n + 1);
           first += kRows) {
        const std::int64_t count = std::min(kRows, begin_of(n + 1) - first);
        cpu.loops<T>().patch_fold(left, a, out_sign, row_lines<T>(line, dy, d, kept, first, count));
        for (std::int64_t i = 0; scale && i < count * a; ++i) left[i] *= scale[first + i / a];
        cpu.loops<T>().patch_fold(right, b, in_sign, lines_of_x(first, count));
        gemm(a, b, count, Factor<T>{left, a, true}, Factor<T>{right, b},
             args.sketch.ptr<T>() + n * a * b, b, first > begin_of(n));
      }
  });
}

}  // namespace

void compute(CpuContext& cpu, const ItemSketch& args) {
  with_type(args.sketch.dtype, [&](auto type) { item_sketch<decltype(type)>(cpu, args); });
}

void compute(CpuContext& cpu, const Gram& args) {
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t n = args.x.rows(), width = args.x.width();
    const T* x = args.x.ptr<T>();
    cpu.rows(n, width, [&](std::int64_t begin, std::int64_t end) {
      gemm(end - begin, n, width, Factor<T>{x + begin * width, width}, Factor<T>{x, width, true},
           args.gram.ptr<T>() + begin * n, n, false);
    });
  });
}

}  // namespace vcas
