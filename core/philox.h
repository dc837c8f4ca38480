// Random numbers with addresses: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011).
// Numbers are not consumed, so a run needs no generator state.
// A backward draws the dropout mask of its forward again.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/host_device.h"

namespace vcas {

enum class Stream : std::uint32_t {
  kEcho = 0,     // items that carry what batch norms leave of dropped ones
  kInit = 1,     // parameter initialisation
  kDropout = 2,  // dropout masks
  kGate = 3,     // SampleA draws
  kWeight = 4,   // SampleW draws
  kProbe = 5,    // of variance probes and gradient checks
  kData = 6,     // shuffling and augmentation
  kForward = 7,  // SampleF draws
};

// The address of a random number. A draw adds the index of a row and a column.
// `site`: the layer, gate or parameter. `repeat`: the Monte-Carlo repeat, 0 in training.
struct RandomKey {
  std::uint64_t seed = 0;
  Stream stream = Stream::kInit;
  std::uint64_t step = 0;    // < 2^40
  std::uint32_t site = 0;    // < 2^16
  std::uint32_t repeat = 0;  // < 2^5
};

// The keys of ten rounds, from key (k0, k1). Kernels get them as arguments: constants to them.
constexpr int kPhiloxRounds = 10;
struct PhiloxKeys {
  std::uint32_t k0[kPhiloxRounds], k1[kPhiloxRounds];
};
VCAS_HOST_DEVICE inline PhiloxKeys philox_keys(std::uint32_t k0, std::uint32_t k1) {
  PhiloxKeys keys;
  for (std::uint32_t round = 0; round < kPhiloxRounds; ++round) {
    keys.k0[round] = k0 + round * 0x9E3779B9u;
    keys.k1[round] = k1 + round * 0xBB67AE85u;
  }
  return keys;
}

// Ten rounds on counter (c0..c3).
VCAS_HOST_DEVICE inline void philox4x32_10(std::uint32_t c[4], const PhiloxKeys& keys) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * c[0];
    const std::uint64_t p1 = 0xCD9E8D57ull * c[2];
    const std::uint32_t c1 = c[1];
    const std::uint32_t c3 = c[3];
    c[0] = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ keys.k0[round];
    c[1] = static_cast<std::uint32_t>(p1);
    c[2] = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ keys.k1[round];
    c[3] = static_cast<std::uint32_t>(p0);
  }
}

// The Philox key of a RandomKey, and the fixed half of its counter.
// A 64-bit index fills the other half: a row, or row * width + column in groups of four.
struct PhiloxAddress {
  std::uint32_t key0, key1;
  std::uint32_t high0, high1;
};

// A bijection of (stream, step, site, repeat) into 64 bits. The seed is the Philox key.
VCAS_HOST_DEVICE inline PhiloxAddress philox_address(const RandomKey& key) {
  return {static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32),
          static_cast<std::uint32_t>(key.step),
          static_cast<std::uint32_t>((key.step >> 32) & 0xFF) | ((key.site & 0xFFFFu) << 8) |
              ((key.repeat & 0x1Fu) << 24) | (static_cast<std::uint32_t>(key.stream) << 29)};
}

// A key whose step is read when it draws. `step` may point at memory of the device that draws.
// The same call then draws other numbers in the next step. Null: the step of the key.
struct StepKey {
  RandomKey key;
  const std::int64_t* step = nullptr;

  VCAS_HOST_DEVICE PhiloxAddress address() const {
    RandomKey now = key;
    if (step) now.step = static_cast<std::uint64_t>(*step);
    return philox_address(now);
  }
  PhiloxKeys keys() const {
    const PhiloxAddress address = philox_address(key);
    return philox_keys(address.key0, address.key1);
  }
};

// Four random words at `index`, by the keys of the address.
VCAS_HOST_DEVICE inline void philox_draw(const PhiloxAddress& address, const PhiloxKeys& keys,
                                         std::uint64_t index, std::uint32_t out[4]) {
  out[0] = static_cast<std::uint32_t>(index);
  out[1] = static_cast<std::uint32_t>(index >> 32);
  out[2] = address.high0;
  out[3] = address.high1;
  philox4x32_10(out, keys);
}
VCAS_HOST_DEVICE inline void philox_draw(const PhiloxAddress& address, std::uint64_t index,
                                         std::uint32_t out[4]) {
  philox_draw(address, philox_keys(address.key0, address.key1), index, out);
}

// Uniform in (0, 1): the middle of one of 2^23 equal cells. It is exact in f32 and never 0 or 1.
VCAS_HOST_DEVICE inline float uniform_from_bits(std::uint32_t bits) {
  return (static_cast<float>(bits >> 9) + 0.5f) * 0x1p-23f;
}

// One uniform in (0, 1) at `index`.
VCAS_HOST_DEVICE inline float philox_uniform(const PhiloxAddress& address, std::uint64_t index) {
  std::uint32_t words[4];
  philox_draw(address, index, words);
  return uniform_from_bits(words[0]);
}

// One standard normal at `index`, on the host only: Box-Muller on two words of one draw.
inline double philox_normal(const PhiloxAddress& address, std::uint64_t index) {
  std::uint32_t words[4];
  philox_draw(address, index, words);
  const double u = (words[0] + 0.5) * 0x1p-32;
  const double v = (words[1] + 0.5) * 0x1p-32;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * 3.14159265358979323846 * v);
}

}  // namespace vcas
