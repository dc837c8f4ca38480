// What tests of products on tensor cores share.
#pragma once

#include "kernels/emu/emu_ops.h"
#include "kernels/emu/tensor_core.h"
#include "tests/support/check_op.h"

namespace vcas {

// body(tensors) on every device with tensor cores that is here. The emulator is one of sm_90a too.
inline void on_tensor_cores(Precision precision, const std::function<void(TestTensors&)>& body) {
  for (const std::string& device : test_devices()) {
    if (device == "cpu") continue;
    on_backend(device, *make_ops(device, precision), compute_dtype(precision), body);
    if (device == "emu" && precision == Precision::kBf16)
      on_backend("emu, sm_90a", *make_emu_ops(emu::ThreadOrder::kForward, precision, true),
                 DType::kBF16, body);
  }
}

inline float tf32(double x) { return emu::round_to_tf32(static_cast<float>(x)); }

// Numbers that the precision has.
inline Tensor normal(TestTensors& t, const Shape& shape) {
  std::mt19937 random(5);
  std::normal_distribution<double> distribution;
  return t.filled(shape, [&](std::int64_t) { return tf32(distribution(random)); });
}

// 1, 2, 4, 1/2, 1/4 in turn: they keep a factor's mantissa.
inline Tensor powers_of_two(TestTensors& t, std::int64_t count) {
  return t.wide_filled({count},
                       [](std::int64_t i) { return std::ldexp(1, static_cast<int>(i % 5) - 2); });
}

}  // namespace vcas
