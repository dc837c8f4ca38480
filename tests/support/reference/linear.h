// Linear maps: products, bias gradients.
#pragma once

#include "tests/support/reference/tensors.h"

namespace vcas::reference {

inline void run(const LinearForward& a) {
  const std::int64_t d = a.y.width(), c = a.weight.width();
  for (std::int64_t r = 0; r < a.y.rows(); ++r)
    for (std::int64_t o = 0; o < d; ++o) {
      double sum = a.bias ? f(a.bias)[o] : 0;
      for (std::int64_t i = 0; i < c; ++i)
        sum += value_of(a.patches, a.x, r, i) * f(a.weight)[o * c + i];
      f(a.y)[r * d + o] = sum;
    }
}

inline void run(const LinearBackwardInput& a) {
  const std::int64_t d = a.dy.width(), c = a.weight.width();
  if (!a.accumulate) std::fill_n(f(a.dx), a.dx.elements(), 0.0);
  for (std::int64_t r = 0; r < a.dy.rows(); ++r)
    for (std::int64_t i = 0; i < c; ++i) {
      double sum = 0;
      for (std::int64_t o = 0; o < d; ++o) sum += f(a.dy)[r * d + o] * f(a.weight)[o * c + i];
      if (const std::int64_t entry = entry_of(a.patches, a.dx, r, i); entry >= 0)
        f(a.dx)[entry] += sum;
    }
}

inline void run(const LinearBackwardWeight& a) {
  const std::int64_t d = a.dy.width(), c = a.dweight.width();
  const std::int64_t count = a.count ? i32(a.count)[0] : a.kept ? a.kept.elements() : a.dy.rows();
  if (!a.accumulate) std::fill_n(f(a.dweight), d * c, 0.0);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t k = index_at(a.kept, i), r = index_at(a.row, k);
    for (std::int64_t o = 0; o < d; ++o)
      for (std::int64_t j = 0; j < c; ++j)
        f(a.dweight)[o * c + j] +=
            factor_at(a.scale, i) * f(a.dy)[k * d + o] * value_of(a.patches, a.x_full, r, j);
  }
}

inline void run(const ColumnSum& a) {
  const std::int64_t c = a.x.width();
  if (!a.accumulate) std::fill_n(f(a.sum), c, 0.0);
  for (std::int64_t r = 0; r < a.x.rows(); ++r)
    for (std::int64_t i = 0; i < c; ++i) f(a.sum)[i] += f(a.x)[r * c + i];
}

}  // namespace vcas::reference
