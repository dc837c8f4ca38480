// Patches, pooling, embeddings, chosen rows.
#pragma once

#include "tests/support/reference/tensors.h"

namespace vcas::reference {

inline void run(const PatchExtract& a) {
  const std::int64_t channels = a.image.shape[1], height = a.image.shape[2], w = a.image.shape[3];
  const std::int64_t down = height / a.patch, across = w / a.patch;
  const std::int64_t items = a.item ? a.item.elements() : a.image.shape[0];
  const float* image = a.image.ptr<float>();
  double* y = f(a.y);
  for (std::int64_t n = 0; n < items; ++n)
    for (std::int64_t py = 0; py < down; ++py)
      for (std::int64_t px = 0; px < across; ++px)
        for (std::int64_t channel = 0; channel < channels; ++channel)
          for (std::int64_t dy = 0; dy < a.patch; ++dy)
            for (std::int64_t dx = 0; dx < a.patch; ++dx)
              *y++ = static_cast<double>(
                  image[((index_at(a.item, n) * channels + channel) * height + py * a.patch + dy) *
                            w +
                        px * a.patch + dx]);
}

inline void run(const PatchTokensForward& a) {
  const std::int64_t tokens = a.y.shape[1], c = a.y.width(), skipped = a.cls ? 1 : 0;
  for (std::int64_t n = 0; n < a.y.shape[0]; ++n)
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t i = 0; i < c; ++i)
        f(a.y)[(n * tokens + t) * c + i] =
            f(a.position)[t * c + i] +
            (t < skipped ? f(a.cls)[i]
                         : f(a.patches)[(n * (tokens - skipped) + t - skipped) * c + i]);
}

inline void run(const PatchTokensBackward& a) {
  const std::int64_t tokens = a.dy.shape[1], patches = a.dpatches.shape[1], c = a.dy.width();
  for (std::int64_t n = 0; n < a.dy.shape[0]; ++n)
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t i = 0; i < c; ++i) {
        const double dy = f(a.dy)[(n * tokens + t) * c + i];
        const std::int64_t j = t - (tokens - patches);
        if (j >= 0) f(a.dpatches)[(n * patches + j) * c + i] = dy;
        if (j < 0 && a.dcls) f(a.dcls)[i] += dy;
        if (a.dposition) f(a.dposition)[t * c + i] += dy;
      }
}

inline void run(const PoolForward& a) {
  const std::int64_t c = a.y.width();
  for (std::int64_t n = 0; n < a.y.rows(); ++n)
    for (std::int64_t i = 0; i < c; ++i) {
      const std::int64_t begin = i64(a.offsets)[n], end = i64(a.offsets)[n + 1];
      double sum = 0;
      for (std::int64_t r = begin; r < end; ++r) sum += f(a.x)[r * c + i];
      f(a.y)[n * c + i] = a.pooling == Pooling::kFirst ? f(a.x)[begin * c + i]
                                                       : sum / static_cast<double>(end - begin);
    }
}

inline void run(const PoolBackward& a) {
  const std::int64_t c = a.dy.width();
  for (std::int64_t n = 0; n < a.dy.rows(); ++n) {
    const std::int64_t begin = i64(a.offsets)[n], end = i64(a.offsets)[n + 1];
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t i = 0; i < c; ++i) {
        const double first = r == begin ? f(a.dy)[n * c + i] : 0;
        f(a.dx)[r * c + i] = a.pooling == Pooling::kFirst
                                 ? first
                                 : f(a.dy)[n * c + i] / static_cast<double>(end - begin);
      }
  }
}

inline void run(const EmbeddingForward& a) {
  const std::int64_t c = a.y.width();
  for (std::int64_t r = 0; r < a.y.rows(); ++r)
    for (std::int64_t i = 0; i < c; ++i) f(a.y)[r * c + i] = f(a.table)[i32(a.tokens)[r] * c + i];
}

inline void run(const EmbeddingBackward& a) {
  const std::int64_t c = a.dy.width();
  for (std::int64_t r = 0; r < a.dy.rows(); ++r)
    for (std::int64_t i = 0; i < c; ++i)
      f(a.dtable)[i32(a.tokens_full)[index_at(a.row, r)] * c + i] += f(a.dy)[r * c + i];
}

inline void run(const ScatterRows& a) {
  const std::int64_t c = a.dx.width();
  std::fill_n(f(a.dx), a.dx.elements(), 0.0);
  for (std::int64_t n = 0; n + 1 < a.offsets.elements(); ++n)
    for (std::int64_t p = i64(a.dy_offsets)[n]; p < i64(a.dy_offsets)[n + 1]; ++p) {
      const std::int64_t in_item =
          i32(a.index_full)[index_at(a.row, p)] - i64(a.offsets_full)[index_at(a.item, n)];
      for (std::int64_t i = 0; i < c; ++i)
        f(a.dx)[(i64(a.offsets)[n] + in_item) * c + i] += f(a.dy)[p * c + i];
    }
}

}  // namespace vcas::reference
