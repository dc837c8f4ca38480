// Convolutions: panels of patches, read where they lie, times packed weights.
#include "kernels/cpu/convolution.h"

#include "kernels/cpu/patch_panel.h"

namespace vcas {
namespace {

constexpr std::int64_t kProductsPerElement = 8;  // that cost as much as an element of other work

// Calls body(first, count) for panels of rows [begin, end).
template <class T, class Body>
void for_panels(std::int64_t begin, std::int64_t end, const Body& body) {
  constexpr std::int64_t kRows = PatchPanel<T>::kRows;
  for (std::int64_t first = begin; first < end; first += kRows)
    body(first, std::min(kRows, end - first));
}

// The taps that reach the positions phase, phase + stride, ... of one side of the input.
// Tap number i is largest - i * stride. For the first position it reads output `from` + i.
struct TapsOfPhase {
  std::int64_t positions, taps, largest, from;

  TapsOfPhase(const Patches& patches, std::int64_t side, std::int64_t phase)
      : positions((side - phase + patches.stride - 1) / patches.stride) {
    const std::int64_t smallest = (phase + patches.padding) % patches.stride;
    taps = (patches.kernel - smallest + patches.stride - 1) / patches.stride;
    largest = smallest + (taps - 1) * patches.stride;
    from = (phase + patches.padding - largest) / patches.stride;
  }
};

// Patch r of x times the weight, for r < rows. The weight is [lines * taps * channels, outputs].
// pack(weight) writes it packed. outputs_of(y, first, count) makes y[i] the outputs of patch first
// + i.
template <class T, class Pack, class OutputsOf>
void multiply_patches(CpuContext& cpu, const PatchGrid& grid, const Tensor& x, std::int64_t rows,
                      std::int64_t outputs, bool accumulate, const Pack& pack,
                      const OutputsOf& outputs_of) {
  const std::int64_t channels = x.width(), values = grid.lines * grid.taps * channels;
  const int slices = cpu.slices_for(
      rows, rows * outputs * std::max(values, kProductsPerElement) / kProductsPerElement);
  const std::int64_t space =
      on_lines(PatchPanel<T>::kPointers + PatchPanel<T>::space(grid, channels));
  T* weight = cpu.scratch<T>(on_lines(values * outputs) + slices * space);
  T* scratch = weight + on_lines(values * outputs);
  pack(weight);
  cpu.slices(slices, rows, PatchPanel<T>::kRows,
             [&](std::int64_t begin, std::int64_t end, int slice) {
               T* own = scratch + slice * space;
               T** y = reinterpret_cast<T**>(own);
               const PatchPanel<T> panel(grid, channels, own + PatchPanel<T>::kPointers);
               for_panels<T>(begin, end, [&](std::int64_t first, std::int64_t count) {
                 outputs_of(y, first, count);
                 cpu.loops<T>().patch_product(y, panel.lines(x.ptr<T>(), nullptr, first, count),
                                              weight, outputs, accumulate);
               });
             });
}

// The pixels of one phase of both sides: patches of dy times the taps that reach them.
template <class T>
void backward_phase(CpuContext& cpu, const LinearBackwardInput& args, std::int64_t phase_y,
                    std::int64_t phase_x) {
  const Patches& patches = args.patches;
  const TapsOfPhase y(patches, patches.height, phase_y), x(patches, patches.width, phase_x);
  if (y.taps * x.taps == 0 && args.accumulate) return;
  const PatchGrid grid = {.height = patches.out_height(),
                          .width = patches.out_width(),
                          .rows = y.positions,
                          .columns = x.positions,
                          .step = 1,
                          .top = y.from,
                          .left = x.from,
                          .lines = y.taps,
                          .taps = x.taps};
  const std::int64_t d = args.dy.width(), channels = args.dx.width(), in = args.weight.width();
  const std::int64_t items = args.dx.rows() / patches.in_rows();
  const auto pack = [&](T* weight) {
    for (std::int64_t i = 0; i < y.taps; ++i)
      for (std::int64_t j = 0; j < x.taps; ++j) {
        const std::int64_t tap =
            (y.largest - i * patches.stride) * patches.kernel + x.largest - j * patches.stride;
        cpu.loops<T>().pack_outputs(weight, args.weight.ptr<T>() + tap * channels, 1, in,
                                    (i * x.taps + j) * d, d, y.taps * x.taps * d, channels);
      }
  };
  const auto pixels_of = [&](T** dx, std::int64_t first, std::int64_t count) {
    const auto write = [&](auto i, auto n, auto item, auto row, auto column) {
      const std::int64_t line = item * patches.height + phase_y + row * patches.stride;
      const std::int64_t pixel = line * patches.width + phase_x + column * patches.stride;
      for (std::int64_t p = 0; p < n; ++p)
        dx[i + p] = args.dx.ptr<T>() + (pixel + p * patches.stride) * channels;
    };
    grid.for_stretches(first, count, write);
  };
  multiply_patches<T>(cpu, grid, args.dy, items * grid.cells(), channels, args.accumulate, pack,
                      pixels_of);
}

}  // namespace

template <class T>
void convolve(CpuContext& cpu, const LinearForward& args) {
  const std::int64_t d = args.y.width(), values = args.weight.width();
  const T* bias = args.bias.ptr<T>();
  const auto pack = [&](T* weight) {
    cpu.loops<T>().pack_outputs(weight, args.weight.ptr<T>(), values, 1, 0, values, values, d);
  };
  const auto rows_of = [&](T** y, std::int64_t first, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) y[i] = args.y.ptr<T>() + (first + i) * d;
    if (bias) cpu.loops<T>().fill_rows(y[0], d, bias, count, d);
  };
  multiply_patches<T>(cpu, output_grid(args.patches), args.x, args.y.rows(), d, bias != nullptr,
                      pack, rows_of);
}

template <class T>
void convolve(CpuContext& cpu, const LinearBackwardInput& args) {
  for (std::int64_t y = 0; y < std::min(args.patches.stride, args.patches.height); ++y)
    for (std::int64_t x = 0; x < std::min(args.patches.stride, args.patches.width); ++x)
      backward_phase<T>(cpu, args, y, x);
}

// Each thread sums some values of the patches, over all rows: no barriers.
template <class T>
void convolve(CpuContext& cpu, const LinearBackwardWeight& args, std::int64_t rows) {
  constexpr std::int64_t kGrain = 8, kRows = PatchPanel<T>::kRows;
  const std::int64_t d = args.dweight.shape[0], values = args.dweight.shape[1];
  const PatchGrid grid = output_grid(args.patches);
  const std::int64_t channels = args.x_full.width();
  const int slices =
      cpu.slices_for(pieces(values, kGrain), rows * d * values / kProductsPerElement);
  const std::int64_t space = on_lines(PatchPanel<T>::space(grid, channels) + kRows * (d + 1));
  T* sum = cpu.scratch<T>(on_lines(values * d) + slices * space);
  T* scratch = sum + on_lines(values * d);
  std::fill_n(sum, values * d, T(0));
  const auto *row = args.row.ptr<std::int32_t>(), *kept = args.kept.ptr<std::int32_t>();
  const T* scale = args.scale.ptr<T>();
  cpu.slices(slices, values, kGrain, [&](std::int64_t begin, std::int64_t end, int slice) {
    T* own = scratch + slice * space;
    const PatchPanel<T> panel(grid, channels, own);
    T* scaled = own + PatchPanel<T>::space(grid, channels);
    auto* patch = reinterpret_cast<std::int32_t*>(scaled + kRows * d);
    for_panels<T>(0, rows, [&](auto first, auto count) {
      const T* dy = args.dy.ptr<T>() + first * d;
      if (kept) {
        cpu.loops<T>().gather_rows(scaled, args.dy.ptr<T>(), d, kept + first,
                                   scale ? scale + first : nullptr, 1, count, d);
        dy = scaled;
      }
      for (std::int64_t i = 0; kept && row && i < count; ++i) patch[i] = row[kept[first + i]];
      const PatchLines<T> lines =
          kept && row ? panel.lines(args.x_full.ptr<T>(), patch, 0, count)
                      : panel.lines(args.x_full.ptr<T>(), row ? row : kept, first, count);
      cpu.loops<T>().patch_outer(sum, lines, begin, end, dy, d);
    });
    cpu.loops<T>().unpack_outputs(args.dweight.ptr<T>(), sum, begin, end - begin, values, d,
                                  args.accumulate);
  });
}

#define VCAS_CONVOLVE(T)                                              \
  template void convolve<T>(CpuContext&, const LinearForward&);       \
  template void convolve<T>(CpuContext&, const LinearBackwardInput&); \
  template void convolve<T>(CpuContext&, const LinearBackwardWeight&, std::int64_t);
VCAS_CONVOLVE(float)
VCAS_CONVOLVE(double)
#undef VCAS_CONVOLVE

}  // namespace vcas
