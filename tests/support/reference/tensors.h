// The numbers of tensors, and what several specifications need of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/args.h"

namespace vcas::reference {

inline double* f(const Tensor& tensor) { return tensor.ptr<double>(); }
inline std::int32_t* i32(const Tensor& tensor) { return tensor.ptr<std::int32_t>(); }
inline std::int64_t* i64(const Tensor& tensor) { return tensor.ptr<std::int64_t>(); }
// Optional tensors: the identity, and ones.
inline std::int64_t index_at(const Tensor& index, std::int64_t i) {
  return index ? i32(index)[i] : i;
}
inline double factor_at(const Tensor& factor, std::int64_t i) {
  return factor ? f(factor)[i] : 1.0;
}
inline void put(double& out, double value, bool accumulate) {
  out = accumulate ? out + value : value;
}
// 0 or 1 / (1 - p), by one of the eight 16-bit numbers of a draw: low halves of its words, then
// high ones. The p of masks is a multiple of 2^-16 below 1.
inline double dropout_mask(const StepKey& key, std::int64_t draw, std::int64_t number, double p) {
  std::uint32_t words[4];
  philox_draw(key.address(), static_cast<std::uint64_t>(draw), words);
  const double uniform = (words[number % 4] >> (number < 4 ? 0 : 16)) % 65536 / 65536.0;
  const double rounded = std::min(std::round(p * 65536), 65535.0) / 65536;
  return uniform >= rounded ? 1 / (1 - rounded) : 0;
}

// Where column `column` of row r of x lies, or of its patch r: an entry of x; -1: outside.
inline std::int64_t entry_of(const Patches& p, const Tensor& x, std::int64_t r,
                             std::int64_t column) {
  const std::int64_t c = x.width();
  if (!p) return r * c + column;
  const std::int64_t down = (p.height + 2 * p.padding - p.kernel) / p.stride + 1;
  const std::int64_t across = (p.width + 2 * p.padding - p.kernel) / p.stride + 1;
  const std::int64_t item = r / (down * across), place = r % (down * across), tap = column / c;
  const std::int64_t line = place / across * p.stride + tap / p.kernel - p.padding;
  const std::int64_t pixel = place % across * p.stride + tap % p.kernel - p.padding;
  if (line < 0 || line >= p.height || pixel < 0 || pixel >= p.width) return -1;
  return ((item * p.height + line) * p.width + pixel) * c + column % c;
}
inline double value_of(const Patches& p, const Tensor& x, std::int64_t r, std::int64_t column) {
  const std::int64_t entry = entry_of(p, x, r, column);
  return entry < 0 ? 0 : f(x)[entry];
}

inline double norm_of(const double* x, std::int64_t width) {
  double sum = 0;
  for (std::int64_t i = 0; i < width; ++i) sum += std::pow(x[i], 2);
  return std::sqrt(sum);
}
inline double norm_of_row(const Tensor& x, std::int64_t r) {
  return norm_of(f(x) + r * x.width(), x.width());
}
inline void put_norms(const Tensor& norm, const Tensor& x) {
  for (std::int64_t r = 0; r < norm.elements(); ++r) f(norm)[r] = norm_of_row(x, r);
}

}  // namespace vcas::reference
