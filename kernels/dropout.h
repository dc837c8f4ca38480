// The dropout mask, as every backend computes it.
// Two entries share a random word: one has its low 16 bits, the other its high ones.
// So p is rounded to a multiple of 2^-16 below 1, and below 2^-17 nothing is dropped.
// Kept entries are scaled by 1 / (1 - that p), and the mean is exact.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/host_device.h"

namespace vcas {

// An entry is kept if its bits are at least this, in the high half of what is compared.
inline std::uint32_t dropout_threshold(double p) {
  return static_cast<std::uint32_t>(std::clamp(std::round(p * 0x1p16), 0.0, 65535.0)) << 16;
}

VCAS_HOST_DEVICE inline bool dropout_keeps(std::uint32_t word, bool high, std::uint32_t threshold) {
  return (high ? word : word << 16) >= threshold;
}

// What kept entries are multiplied by: 1 / (1 - p).
inline double dropout_scale(double p) { return 1 / (1 - dropout_threshold(p) * 0x1p-32); }

// Entries that share a word lie so far apart: columns of a row, queries of attention.
constexpr int kDropoutColumns = 128;
constexpr int kDropoutQueries = 8;

// Attention: Philox draws from one query's mask to the next (kernels/ops/attention.h).
constexpr std::uint64_t kDrawsPerQuery = 1 << 20;

}  // namespace vcas
