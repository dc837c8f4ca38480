// Element by element: activations, dropout, sums, copies, optimizers.
#include <algorithm>
#include <cstring>

#include "kernels/clipping.h"
#include "kernels/cpu/compute.h"

namespace vcas {
namespace {

// body(begin, count) on contiguous parts of n elements.
template <class Body>
void elements(const CpuContext& cpu, std::int64_t n, const Body& body) {
  cpu.grains(n, 64, n, [&](std::int64_t begin, std::int64_t end) { body(begin, end - begin); });
}

// body(begin, count, whether they have weight decay) on parts of the parameters.
template <class Args, class Body>
void by_decay(const CpuContext& cpu, const Args& args, const Body& body) {
  const std::int64_t all = args.param.elements(), decayed = std::min(args.decayed, all);
  elements(cpu, decayed, [&](std::int64_t begin, std::int64_t count) { body(begin, count, true); });
  elements(cpu, all - decayed,
           [&](std::int64_t begin, std::int64_t count) { body(decayed + begin, count, false); });
}

template <class P>
void forward(const CpuContext& cpu, const PointwiseForward<P>& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t width = args.y.width();
    T* y = args.y.template ptr<T>();
    const T* x = args.x.template ptr<T>();
    cpu.write_rows<T>(args.y, args.y_norm, width, [&](std::int64_t begin, std::int64_t end) {
      cpu.loops<T>().of(P{}).forward(y + begin * width, x + begin * width, (end - begin) * width);
    });
  });
}

template <class P>
void backward(const CpuContext& cpu, const PointwiseBackward<P>& args) {
  with_type(args.dx.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* at = args.row.template ptr<std::int32_t>();
    const std::int64_t width = args.dx.width();
    T* dx = args.dx.template ptr<T>();
    const T* dy = args.dy.template ptr<T>();
    const T* saved = args.saved_full.template ptr<T>();
    const auto run = cpu.loops<T>().of(P{}).backward;
    cpu.write_rows<T>(args.dx, args.dx_norm, width, [&](std::int64_t begin, std::int64_t end) {
      if (!at)
        return run(dx + begin * width, dy + begin * width, saved + begin * width,
                   (end - begin) * width);
      for (std::int64_t r = begin; r < end; ++r)
        run(dx + r * width, dy + r * width, saved + at[r] * width, width);
    });
  });
}

}  // namespace

#define VCAS_COMPUTE(_, P)                                                               \
  void compute(CpuContext& cpu, const PointwiseForward<P>& args) { forward(cpu, args); } \
  void compute(CpuContext& cpu, const PointwiseBackward<P>& args) { backward(cpu, args); }
VCAS_FOR_EACH_POINTWISE(VCAS_COMPUTE, )
#undef VCAS_COMPUTE

void compute(CpuContext& cpu, const Dropout& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr std::int64_t kPhiloxCost = 3;  // of half a word, in elements copied
    cpu.write_rows<T>(
        args.y, args.y_norm, kPhiloxCost * args.y.width(),
        [&](std::int64_t begin, std::int64_t end) { dropout_rows<T>(cpu, args, begin, end); });
  });
}

void compute(CpuContext& cpu, const Add& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    T* y = args.y.ptr<T>();
    const T* a = args.a.ptr<T>();
    const T* b = args.b.ptr<T>();
    elements(cpu, args.y.elements(), [&](std::int64_t begin, std::int64_t count) {
      cpu.loops<T>().add(y + begin, a + begin, b + begin, count);
    });
  });
}

void compute(CpuContext& cpu, const Copy& args) {
  auto* y = static_cast<char*>(args.y.data);
  const auto* x = static_cast<const char*>(args.x.data);
  elements(cpu, args.y.bytes(), [&](std::int64_t begin, std::int64_t count) {
    std::memcpy(y + begin, x + begin, count);
  });
}

void compute(CpuContext& cpu, const Fill& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t first = args.from ? *args.from.ptr<std::int64_t>() * args.y.width() : 0;
    T* y = args.y.ptr<T>() + first;
    elements(cpu, args.y.elements() - first, [&](std::int64_t begin, std::int64_t count) {
      std::fill_n(y + begin, count, static_cast<T>(args.value));
    });
  });
}

void compute(CpuContext& cpu, const AdamStep& args) {
  VCAS_CHECK(!args.rounded, "no bf16 on the CPU");
  const double factor = *args.clip_factor.ptr<double>();
  if (!is_usable(factor)) return;
  with_type(args.param.dtype, [&](auto type) {
    using T = decltype(type);
    const T grad_scale = static_cast<T>(factor);
    const AdamFactors<T> factors = adam_factors<T>(args);
    AdamFactors<T> undecayed = factors;
    undecayed.shrink = 1, undecayed.decay = 0;
    T* param = args.param.ptr<T>();
    T* first = args.first_moment.ptr<T>();
    T* second = args.second_moment.ptr<T>();
    const T* grad = args.grad.ptr<T>();
    by_decay(cpu, args, [&](std::int64_t begin, std::int64_t count, bool decays) {
      cpu.loops<T>().adam_step(param + begin, first + begin, second + begin, grad + begin, count,
                               grad_scale, decays ? factors : undecayed);
    });
  });
}

void compute(CpuContext& cpu, const SgdStep& args) {
  VCAS_CHECK(!args.rounded, "no bf16 on the CPU");
  const double factor = *args.clip_factor.ptr<double>();
  if (!is_usable(factor)) return;
  with_type(args.param.dtype, [&](auto type) {
    using T = decltype(type);
    const T grad_scale = static_cast<T>(factor);
    T* param = args.param.ptr<T>();
    T* momentum = args.momentum.ptr<T>();
    const T* grad = args.grad.ptr<T>();
    by_decay(cpu, args, [&](std::int64_t begin, std::int64_t count, bool decays) {
      cpu.loops<T>().sgd_step(param + begin, momentum + begin, grad + begin, count,
                              static_cast<T>(args.learning_rate), static_cast<T>(args.mu),
                              static_cast<T>(decays ? args.weight_decay : 0), grad_scale,
                              args.nesterov);
    });
  });
}

void compute(CpuContext& cpu, const SumSquares& args) {
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t n = args.x.elements();
    const T* x = args.x.ptr<T>();
    const int slices = cpu.slices_for(n, n);
    double* part = cpu.scratch<double>(slices);
    std::fill_n(part, slices, 0.0);
    cpu.slices(slices, n, 1, [&](std::int64_t begin, std::int64_t end, int slice) {
      part[slice] = cpu.loops<T>().sum_squares(x + begin, end - begin);
    });
    double* const sum = args.sum.ptr<double>();
    if (!args.accumulate) *sum = 0;
    if (args.earlier) *sum += 0 * *args.earlier.ptr<double>();
    for (int slice = 0; slice < slices; ++slice) *sum += part[slice];
  });
}

void compute(CpuContext&, const ClipFactor& args) {
  *args.factor.ptr<double>() =
      clip_factor(*args.squared_norm.ptr<double>(), args.max_norm, args.predicted.ptr<double>());
}

}  // namespace vcas
