// Sketches of the items' weight gradients.
#pragma once

#include "tests/support/reference/tensors.h"

namespace vcas::reference {

inline void run(const ItemSketch& a) {
  const std::int64_t outs = a.out_buckets, ins = a.in_buckets();
  const std::int64_t d = a.dy.width(), c = a.in_sign.elements();
  std::fill_n(f(a.sketch), a.sketch.elements(), 0.0);
  const std::int64_t drawn = a.count ? i32(a.count)[0] : a.kept.elements();
  for (std::int64_t n = 0; n < a.sketch.rows(); ++n) {
    const std::int64_t length = (a.kept.elements() + a.sketch.rows() - 1) / a.sketch.rows();
    const std::int64_t first = a.kept ? n * length : i64(a.offsets)[n];
    const std::int64_t end = a.kept ? std::min(first + length, drawn) : i64(a.offsets)[n + 1];
    for (std::int64_t k = first; k < end; ++k) {
      const std::int64_t r = index_at(a.kept, k);
      for (std::int64_t o = 0; o < d; ++o)
        for (std::int64_t i = 0; i < c; ++i)
          f(a.sketch)[(n * outs + o % outs) * ins + i % ins] +=
              (a.scale ? f(a.scale)[k] : 1) * f(a.out_sign)[o] * f(a.dy)[r * d + o] *
              f(a.in_sign)[i] * value_of(a.patches, a.x_full, index_at(a.row, r), i);
    }
  }
}

inline void run(const Gram& a) {
  const std::int64_t n = a.x.rows(), width = a.x.width();
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t e = 0; e < width; ++e) sum += f(a.x)[i * width + e] * f(a.x)[j * width + e];
      f(a.gram)[i * n + j] = sum;
    }
}

}  // namespace vcas::reference
