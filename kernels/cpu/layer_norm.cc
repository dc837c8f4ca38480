#include "kernels/cpu/compute.h"

namespace vcas {

void compute(CpuContext& cpu, const LayerNormForward& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t width = args.y.width();
    T* y = args.y.ptr<T>();
    T* center = args.center.ptr<T>();
    T* rstd = args.rstd.ptr<T>();
    const T* x = args.x.ptr<T>();
    cpu.write_rows<T>(args.y, args.y_norm, width, [&](std::int64_t begin, std::int64_t end) {
      if (args.branch) dropout_rows<T>(cpu, args.sum(), begin, end);
      cpu.loops<T>().layer_norm_forward(y + begin * width, center + begin, rstd + begin,
                                        x + begin * width, args.gamma.ptr<T>(), args.beta.ptr<T>(),
                                        static_cast<T>(args.eps), end - begin, width);
    });
  });
}

void compute(CpuContext& cpu, const LayerNormBackward& args) {
  with_type(args.dy.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t rows = args.rows(), width = args.dy.width();
    const int slices = cpu.slices_for(rows, rows * width);
    T* dgamma = args.dgamma.ptr<T>();
    T* dbeta = args.dbeta.ptr<T>();
    // Each slice sums into its own 2 * width numbers, added in the order of the slices.
    T* part = cpu.scratch<T>(slices * 2 * width);
    std::fill_n(part, slices * 2 * width, T(0));
    cpu.slices(slices, rows, 1, [&](std::int64_t begin, std::int64_t end, int slice) {
      T* own = dgamma ? part + slice * 2 * width : nullptr;
      const auto write = [&](std::int64_t first, std::int64_t last) {
        cpu.loops<T>().layer_norm_backward(
            args.dx.ptr<T>(), args.added.ptr<T>(), own, own ? own + width : nullptr,
            args.dy.ptr<T>(), args.dy_row.ptr<std::int32_t>(), args.dy_scale.ptr<T>(),
            args.x_full.ptr<T>(), args.center_full.ptr<T>(), args.rstd_full.ptr<T>(),
            args.gamma.ptr<T>(), args.row.ptr<std::int32_t>(), first, last, width);
        if (!args.dbranch) return;
        const Dropout drop = args.drop();
        cpu.write_rows<T>(
            drop.y, drop.y_norm, first, last,
            [&](std::int64_t from, std::int64_t to) { dropout_rows<T>(cpu, drop, from, to); });
      };
      cpu.write_rows<T>(args.dx, args.dx_norm, begin, end, write);
    });
    if (!dgamma) return;
    if (!args.accumulate_parameters) {
      std::fill_n(dgamma, width, T(0));
      std::fill_n(dbeta, width, T(0));
    }
    cpu.loops<T>().column_sum(dgamma, part, 2 * width, slices, width);
    cpu.loops<T>().column_sum(dbeta, part + width, 2 * width, slices, width);
  });
}

}  // namespace vcas
