// Max pooling of images.
#pragma once

#include "tests/support/reference/tensors.h"

namespace vcas::reference {

inline void run(const MaxPoolForward& a) {
  const std::int64_t c = a.y.width();
  for (std::int64_t r = 0; r < a.y.rows(); ++r)
    for (std::int64_t i = 0; i < c; ++i) {
      double& y = f(a.y)[r * c + i];
      std::int32_t& tap = i32(a.tap)[r * c + i];
      y = -std::numeric_limits<double>::infinity();
      tap = -1;
      for (std::int32_t t = 0; t < a.patches.kernel * a.patches.kernel; ++t) {
        const std::int64_t entry = entry_of(a.patches, a.x, r, t * c + i);
        if (entry < 0) continue;
        const double x = f(a.x)[entry];
        if (tap >= 0 && !(x > y) && !(std::isnan(x) && !std::isnan(y))) continue;
        y = x;
        tap = t;
      }
    }
}

inline void run(const MaxPoolBackward& a) {
  const std::int64_t c = a.dx.width();
  std::fill_n(f(a.dx), a.dx.elements(), 0.0);
  for (std::int64_t r = 0; r < a.dy.rows(); ++r)
    for (std::int64_t i = 0; i < c; ++i) {
      const std::int64_t tap = i32(a.tap_full)[index_at(a.row, r) * c + i];
      f(a.dx)[entry_of(a.patches, a.dx, r, tap * c + i)] += f(a.dy)[r * c + i];
    }
}

}  // namespace vcas::reference
