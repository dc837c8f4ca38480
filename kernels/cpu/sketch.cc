// Sketches: rows are added up into buckets, then one small product an item.
#include "kernels/cpu/compute.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/patch_panel.h"

namespace vcas {
namespace {

constexpr std::int64_t kSketchRows = 256;

// y[r, b] = sum over c = b, b + buckets, ... of sign[c] x[row(first + r), c]
template <class T>
void add_up(T* y, std::int64_t buckets, const T* x, std::int64_t width, const std::int32_t* row,
            const T* sign, std::int64_t first, std::int64_t rows) {
  std::fill_n(y, rows * buckets, T(0));
  for (std::int64_t r = 0; r < rows; ++r, y += buckets) {
    const T* from = x + (row ? row[first + r] : first + r) * width;
    for (std::int64_t begin = 0; begin < width; begin += buckets) {
      const std::int64_t count = std::min(buckets, width - begin);
      for (std::int64_t b = 0; b < count; ++b) y[b] += sign[begin + b] * from[begin + b];
    }
  }
}

template <class T>
void item_sketch(CpuContext& cpu, const ItemSketch& args) {
  const std::int64_t items = args.sketch.rows(), a = args.out_buckets, b = args.in_buckets();
  const auto* offsets = args.offsets.ptr<std::int64_t>();
  const int slices = cpu.slices_for(
      items, args.dy.rows() * (args.dy.width() + args.in_sign.elements() + args.sketch.width()));
  const std::int64_t values = args.patches ? args.in_sign.elements() : 0;
  const std::int64_t space = kSketchRows * (a + b + values);
  T* scratch = cpu.scratch<T>(slices * space);
  cpu.slices(slices, items, 1, [&](std::int64_t begin, std::int64_t end, int slice) {
    T* left = scratch + slice * space;
    T* right = left + kSketchRows * a;
    T* patches = right + kSketchRows * b;
    for (std::int64_t n = begin; n < end; ++n)
      for (std::int64_t first = offsets[n]; first == offsets[n] || first < offsets[n + 1];
           first += kSketchRows) {
        const std::int64_t rows = std::min(kSketchRows, offsets[n + 1] - first);
        add_up<T>(left, a, args.dy.ptr<T>(), args.dy.width(), nullptr, args.out_sign.ptr<T>(),
                  first, rows);
        const auto* row = args.row.ptr<std::int32_t>();
        const T *x = args.x_full.ptr<T>(), *sign = args.in_sign.ptr<T>();
        if (args.patches) {
          copy_patches(patches, x, args.x_full.width(), args.patches, row, first, rows,
                       std::int64_t{0}, values);
          add_up<T>(right, b, patches, values, nullptr, sign, 0, rows);
        } else {
          add_up<T>(right, b, x, args.x_full.width(), row, sign, first, rows);
        }
        gemm(a, b, rows, Factor<T>{left, a, true}, Factor<T>{right, b},
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
