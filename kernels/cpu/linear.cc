// Linear layers: products sliced over the threads, each slice one single-threaded GEMM.

#include "kernels/cpu/compute.h"
#include "kernels/cpu/convolution.h"
#include "kernels/cpu/gemm.h"

namespace vcas {
namespace {

// A product of fewer multiplications than this is done before a second thread has started.
constexpr std::int64_t kProductsPerSlice = 1 << 17;
constexpr std::int64_t kGrain = 16;  // slices start at whole register tiles of the GEMM
// Gathered rows per product: with 384 columns of each factor they stay in a 1 MiB L2.
constexpr std::int64_t kPanelRows = 320;

int product_slices(const CpuContext& cpu, std::int64_t m, std::int64_t n, std::int64_t k) {
  const std::int64_t grains = (std::max(m, n) + kGrain - 1) / kGrain;
  return static_cast<int>(
      std::clamp<std::int64_t>(std::min(m * n * k / kProductsPerSlice, grains), 1, cpu.threads()));
}

// c = a b (+ c) (+ bias), the longer side of c split over the threads.
template <class T>
void product(const CpuContext& cpu, std::int64_t m, std::int64_t n, std::int64_t k,
             const Factor<T>& a, const Factor<T>& b, T* c, bool accumulate,
             const T* bias = nullptr) {
  const int slices = product_slices(cpu, m, n, k);
  const auto part = [&](std::int64_t row, std::int64_t rows, std::int64_t column,
                        std::int64_t columns) {
    T* out = c + row * n + column;
    // BLAS would clear the output first; giving it the bias instead costs nothing.
    if (bias) cpu.loops<T>().fill_rows(out, n, bias + column, rows, columns);
    gemm(rows, columns, k, a.from_row(row), b.from_column(column), out, n, accumulate || bias);
  };
  if (m >= n)
    cpu.slices(slices, m, kGrain,
               [&](std::int64_t begin, std::int64_t end, int) { part(begin, end - begin, 0, n); });
  else
    cpu.slices(slices, n, kGrain,
               [&](std::int64_t begin, std::int64_t end, int) { part(0, m, begin, end - begin); });
}

// One factor of dW, in panels of rows: `width` columns from `data` on, the rows that `index` names
// (null: as they lie), times `scale` (null: 1).
template <class T>
struct PanelSource {
  const T* data;
  std::int64_t stride;
  std::int64_t width;
  const std::int32_t* index;
  const T* scale;

  // The `rows` rows from `first` on: in place, or gathered into `space`.
  Factor<T> panel(const Loops<T>& loops, std::int64_t first, std::int64_t rows, T* space) const {
    if (!index) return {data + first * stride, stride};
    loops.gather_rows(space, data, stride, index + first, scale ? scale + first : nullptr, 1, rows,
                      width);
    return {space, width};
  }
};

// The row of x of each summand: null is the identity.
const std::int32_t* summand_rows(const LinearBackwardWeight& args, std::int64_t rows,
                                 std::int32_t* composed) {
  const auto* row = args.row.ptr<std::int32_t>();
  const auto* kept = args.kept.ptr<std::int32_t>();
  if (!kept || !row) return row ? row : kept;
  for (std::int64_t i = 0; i < rows; ++i) composed[i] = row[kept[i]];
  return composed;
}

template <class T>
void backward_weight(CpuContext& cpu, const LinearBackwardWeight& args) {
  const std::int64_t d = args.dweight.shape[0], c = args.dweight.shape[1];
  const auto* kept = args.kept.ptr<std::int32_t>();
  const std::int64_t rows = args.count ? *args.count.ptr<std::int32_t>()
                            : kept     ? args.kept.elements()
                                       : args.dy.rows();
  if (args.patches) return convolve<T>(cpu, args, rows);
  const T* dy = args.dy.ptr<T>();
  const T* x = args.x_full.ptr<T>();
  T* dw = args.dweight.ptr<T>();
  if (!args.row && !kept)
    return product<T>(cpu, d, c, rows, {dy, d, true}, {x, c}, dw, args.accumulate);

  // Each thread gathers its columns of the wider factor and all of the other one: no barriers.
  const bool split_d = d >= c;
  const int slices = product_slices(cpu, d, c, rows);
  const std::int64_t space = kPanelRows * (d + c);
  T* scratch = cpu.scratch<T>(slices * space + rows);
  const std::int32_t* x_index =
      summand_rows(args, rows, reinterpret_cast<std::int32_t*>(scratch + slices * space));
  const T* scale = args.scale.ptr<T>();
  cpu.slices(slices, split_d ? d : c, kGrain, [&](std::int64_t begin, std::int64_t end, int slice) {
    const std::int64_t first_d = split_d ? begin : 0, first_c = split_d ? 0 : begin;
    const std::int64_t width_d = split_d ? end - begin : d;
    const std::int64_t width_c = split_d ? c : end - begin;
    const PanelSource<T> left{dy + first_d, d, width_d, kept, scale};
    const PanelSource<T> right{x + first_c, c, width_c, x_index, nullptr};
    T* left_space = scratch + slice * space;
    T* right_space = left_space + kPanelRows * d;
    for (std::int64_t first = 0; first == 0 || first < rows; first += kPanelRows) {
      const std::int64_t panel = std::min(kPanelRows, rows - first);
      Factor<T> a = left.panel(cpu.loops<T>(), first, panel, left_space);
      a.transposed = true;
      const Factor<T> b = right.panel(cpu.loops<T>(), first, panel, right_space);
      gemm(width_d, width_c, panel, a, b, dw + first_d * c + first_c, c,
           args.accumulate || first > 0);
    }
  });
}

}  // namespace

void compute(CpuContext& cpu, const LinearForward& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t c = args.x.width();
    if (args.patches) return convolve<T>(cpu, args);
    product<T>(cpu, args.y.rows(), args.y.width(), c, {args.x.ptr<T>(), c},
               {args.weight.ptr<T>(), c, true}, args.y.ptr<T>(), false, args.bias.ptr<T>());
  });
}

void compute(CpuContext& cpu, const LinearBackwardInput& args) {
  with_type(args.dx.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t c = args.dx.width(), d = args.dy.width();
    if (args.patches) return convolve<T>(cpu, args);
    product<T>(cpu, args.dx.rows(), c, d, {args.dy.ptr<T>(), d}, {args.weight.ptr<T>(), c},
               args.dx.ptr<T>(), args.accumulate);
  });
}

void compute(CpuContext& cpu, const Group<LinearBackwardWeight>& group) {
  for (const LinearBackwardWeight& args : group)
    with_type(args.dweight.dtype, [&](auto type) { backward_weight<decltype(type)>(cpu, args); });
}

// Split by columns, so that no partial sums are needed and the result does not depend on the
// threads.
void compute(CpuContext& cpu, const Group<ColumnSum>& group) {
  for (const ColumnSum& args : group)
    with_type(args.x.dtype, [&](auto type) {
      using T = decltype(type);
      const std::int64_t rows = args.x.rows(), width = args.x.width();
      T* sum = args.sum.ptr<T>();
      const T* x = args.x.ptr<T>();
      cpu.grains(width, kGrain, rows * width, [&](std::int64_t begin, std::int64_t end) {
        if (!args.accumulate) std::fill(sum + begin, sum + end, T(0));
        cpu.loops<T>().column_sum(sum + begin, x + begin, width, rows, end - begin);
      });
    });
}

}  // namespace vcas
