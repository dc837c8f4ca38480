// Element by element: activations, dropout, sums, copies, optimizers.
#include <cmath>
#include <cstring>

#include "kernels/clipping.h"
#include "kernels/cpu/compute.h"

namespace vcas {
namespace {

// body(begin, count) on contiguous parts of n elements.
template <class Body>
void elements(const CpuContext& cpu, std::int64_t n, const Body& body) {
  constexpr std::int64_t kGrain = 64;
  cpu.slices(cpu.slices_for((n + kGrain - 1) / kGrain, n), n, kGrain,
             [&](std::int64_t begin, std::int64_t end, int) { body(begin, end - begin); });
}

// dx[r] = backward(dy[r], full[row[r]])
template <class T, class Backward>
void activation_backward(const CpuContext& cpu, const Tensor& dx, const Tensor& dx_norm,
                         const Tensor& dy, const Tensor& full, const Tensor& row,
                         const Backward& backward) {
  const auto* at = row.ptr<std::int32_t>();
  const std::int64_t width = dx.width();
  T* out = dx.ptr<T>();
  const T* in = dy.ptr<T>();
  const T* x = full.ptr<T>();
  cpu.write_rows<T>(dx, dx_norm, width, [&](std::int64_t begin, std::int64_t end) {
    if (!at)
      return backward(out + begin * width, in + begin * width, x + begin * width,
                      (end - begin) * width);
    for (std::int64_t r = begin; r < end; ++r)
      backward(out + r * width, in + r * width, x + at[r] * width, width);
  });
}

}  // namespace

void compute(CpuContext& cpu, const GeluForward& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t width = args.y.width();
    T* y = args.y.ptr<T>();
    const T* x = args.x.ptr<T>();
    cpu.write_rows<T>(args.y, args.y_norm, width, [&](std::int64_t begin, std::int64_t end) {
      cpu.loops<T>().gelu_forward(y + begin * width, x + begin * width, (end - begin) * width);
    });
  });
}

void compute(CpuContext& cpu, const GeluBackward& args) {
  with_type(args.dx.dtype, [&](auto type) {
    using T = decltype(type);
    activation_backward<T>(cpu, args.dx, args.dx_norm, args.dy, args.x_full, args.row,
                           cpu.loops<T>().gelu_backward);
  });
}

void compute(CpuContext& cpu, const TanhForward& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    T* y = args.y.ptr<T>();
    const T* x = args.x.ptr<T>();
    elements(cpu, args.y.elements(), [&](std::int64_t begin, std::int64_t count) {
      for (std::int64_t i = begin; i < begin + count; ++i) y[i] = std::tanh(x[i]);
    });
  });
}

void compute(CpuContext& cpu, const TanhBackward& args) {
  with_type(args.dx.dtype, [&](auto type) {
    using T = decltype(type);
    activation_backward<T>(cpu, args.dx, {}, args.dy, args.y_full, args.row,
                           cpu.loops<T>().tanh_backward);
  });
}

void compute(CpuContext& cpu, const Dropout& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t width = args.y.width();
    const PhiloxAddress address = step_key(args).address();
    constexpr std::int64_t kPhiloxCost = 4;  // of one word, in elements copied
    cpu.write_rows<T>(args.y, args.y_norm, kPhiloxCost * width,
                      [&](std::int64_t begin, std::int64_t end) {
                        cpu.loops<T>().dropout(args.y.ptr<T>(), args.x.ptr<T>(),
                                               args.residual.ptr<T>(), args.row.ptr<std::int32_t>(),
                                               begin, end, width, dropout_threshold(args.p),
                                               static_cast<T>(1 / (1 - args.p)), address);
                      });
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
  VCAS_CHECK(args.y.bytes() == args.x.bytes(),
             "copy of " + args.x.shape.text() + " to " + args.y.shape.text());
  auto* y = static_cast<char*>(args.y.data);
  const auto* x = static_cast<const char*>(args.x.data);
  elements(cpu, static_cast<std::int64_t>(args.y.bytes()),
           [&](std::int64_t begin, std::int64_t count) {
             std::memcpy(y + begin, x + begin, static_cast<std::size_t>(count));
           });
}

void compute(CpuContext& cpu, const Fill& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    T* y = args.y.ptr<T>();
    elements(cpu, args.y.elements(), [&](std::int64_t begin, std::int64_t count) {
      std::fill_n(y + begin, count, static_cast<T>(args.value));
    });
  });
}

void compute(CpuContext& cpu, const AdamStep& args) {
  VCAS_CHECK(!args.rounded, "no bf16 on the CPU");
  const double squared_norm = *args.squared_norm.ptr<double>();
  if (!is_usable(squared_norm)) return;
  with_type(args.param.dtype, [&](auto type) {
    using T = decltype(type);
    const double steps = static_cast<double>(args.step);
    const double shrink = args.decoupled ? 1 - args.learning_rate * args.weight_decay : 1;
    const AdamFactors<T> factors{
        .learning_rate = static_cast<T>(args.learning_rate),
        .eps = static_cast<T>(args.eps),
        .grad_scale = static_cast<T>(clip_scale(squared_norm, args.max_norm)),
        .gain1 = static_cast<T>(1 - args.beta1),
        .gain2 = static_cast<T>(1 - args.beta2),
        .shrink = static_cast<T>(shrink),
        .decay = static_cast<T>(args.decoupled ? 0 : args.weight_decay),
        .first_correction = static_cast<T>(1 / (1 - std::pow(args.beta1, steps))),
        .second_correction = static_cast<T>(1 / (1 - std::pow(args.beta2, steps)))};
    T* param = args.param.ptr<T>();
    T* first = args.first_moment.ptr<T>();
    T* second = args.second_moment.ptr<T>();
    const T* grad = args.grad.ptr<T>();
    elements(cpu, args.param.elements(), [&](std::int64_t begin, std::int64_t count) {
      cpu.loops<T>().adam_step(param + begin, first + begin, second + begin, grad + begin, count,
                               factors);
    });
  });
}

void compute(CpuContext& cpu, const SgdStep& args) {
  VCAS_CHECK(!args.rounded, "no bf16 on the CPU");
  const double squared_norm = *args.squared_norm.ptr<double>();
  if (!is_usable(squared_norm)) return;
  with_type(args.param.dtype, [&](auto type) {
    using T = decltype(type);
    const T grad_scale = static_cast<T>(clip_scale(squared_norm, args.max_norm));
    T* param = args.param.ptr<T>();
    T* momentum = args.momentum.ptr<T>();
    const T* grad = args.grad.ptr<T>();
    elements(cpu, args.param.elements(), [&](std::int64_t begin, std::int64_t count) {
      cpu.loops<T>().sgd_step(param + begin, momentum + begin, grad + begin, count,
                              static_cast<T>(args.learning_rate), static_cast<T>(args.mu),
                              static_cast<T>(args.weight_decay), grad_scale);
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
    double sum = args.earlier ? 0 * *args.earlier.ptr<double>() : 0;
    for (int slice = 0; slice < slices; ++slice) sum += part[slice];
    *args.sum.ptr<double>() = sum;
  });
}

}  // namespace vcas
