// Losses: squared error, cross entropy.
#include "kernels/cpu/compute.h"

namespace vcas {

void compute(CpuContext&, const SquaredErrorForward& args) {
  const auto* weight = args.weight.ptr<float>();
  with_type(args.prediction.dtype, [&](auto type) {
    using T = decltype(type);
    for (std::int64_t n = 0; n < args.loss.elements(); ++n) {
      const T error = args.prediction.ptr<T>()[n] - static_cast<T>(args.target.ptr<float>()[n]);
      args.loss.ptr<T>()[n] = (weight ? static_cast<T>(weight[n]) : T(1)) * error * error;
    }
  });
}

void compute(CpuContext&, const SquaredErrorBackward& args) {
  const auto* weight = args.weight.ptr<float>();
  with_type(args.prediction.dtype, [&](auto type) {
    using T = decltype(type);
    for (std::int64_t n = 0; n < args.dprediction.elements(); ++n)
      args.dprediction.ptr<T>()[n] =
          static_cast<T>(2 * args.scale) * (weight ? static_cast<T>(weight[n]) : T(1)) *
          (args.prediction.ptr<T>()[n] - static_cast<T>(args.target.ptr<float>()[n]));
  });
}

void compute(CpuContext& cpu, const CrossEntropyForward& args) {
  const auto* weight = args.weight.ptr<float>();
  with_type(args.logits.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t classes = args.logits.width();
    cpu.rows(args.logits.rows(), classes, [&](std::int64_t begin, std::int64_t end) {
      cpu.loops<T>().cross_entropy_forward(
          args.loss.ptr<T>() + begin, args.correct.ptr<std::int32_t>() + begin,
          args.logits.ptr<T>() + begin * classes, args.labels.ptr<std::int32_t>() + begin,
          weight ? weight + begin : nullptr, static_cast<T>(args.smoothing), end - begin, classes);
    });
  });
}

void compute(CpuContext& cpu, const CrossEntropyBackward& args) {
  const auto* weight = args.weight.ptr<float>();
  with_type(args.dlogits.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t classes = args.logits.width();
    cpu.rows(args.logits.rows(), classes, [&](std::int64_t begin, std::int64_t end) {
      cpu.loops<T>().cross_entropy_backward(
          args.dlogits.ptr<T>() + begin * classes, args.logits.ptr<T>() + begin * classes,
          args.labels.ptr<std::int32_t>() + begin, weight ? weight + begin : nullptr,
          static_cast<T>(args.smoothing), static_cast<T>(args.scale), end - begin, classes);
    });
  });
}

}  // namespace vcas
