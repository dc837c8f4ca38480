// Dropout, sums, copies.
#pragma once

#include "tests/support/reference/tensors.h"

namespace vcas::reference {

inline void run(const Dropout& a) {
  const std::int64_t c = a.y.width();
  for (std::int64_t r = 0; r < a.y.rows(); ++r)
    for (std::int64_t i = 0; i < c; ++i) {
      const std::int64_t draw =
          32 * (index_at(a.row, r) * ((c + 255) / 256) + i / 256) + i % 128 / 4;
      const double mask = dropout_mask(step_key(a), draw, i % 4 + (i % 256 < 128 ? 0 : 4), a.p);
      f(a.y)[r * c + i] = f(a.x)[r * c + i] * mask + (a.residual ? f(a.residual)[r * c + i] : 0);
    }
  put_norms(a.y_norm, a.y);
}

inline void run(const Add& a) {
  for (std::int64_t i = 0; i < a.y.elements(); ++i) f(a.y)[i] = f(a.a)[i] + f(a.b)[i];
}

inline void run(const Copy& a) {
  const auto* from = static_cast<const char*>(a.x.data);
  std::copy_n(from, a.x.bytes(), static_cast<char*>(a.y.data));
}

inline void run(const Fill& a) {
  for (std::int64_t r = a.from ? i64(a.from)[0] : 0; r < a.y.rows(); ++r)
    std::fill_n(f(a.y) + r * a.y.width(), a.y.width(), a.value);
}

}  // namespace vcas::reference
