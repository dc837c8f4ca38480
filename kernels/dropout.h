// The dropout mask, as every backend computes it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace vcas {

// Dropout keeps an entry if the 23 high bits of its random word are at least this.
// uniform = (word >> 9 + 1/2) / 2^23, so uniform >= p compares integers.
inline std::uint32_t dropout_threshold(double p) {
  return static_cast<std::uint32_t>(std::max(0.0, std::ceil(p * 0x1p23 - 0.5)));
}

// Attention: Philox draws from one query's mask to the next (kernels/ops/attention.h).
constexpr std::uint64_t kDrawsPerQuery = 1 << 20;

}  // namespace vcas
