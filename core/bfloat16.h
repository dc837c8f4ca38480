// Numbers of 16 bits with the exponent of f32 and 8 bits of precision.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/host_device.h"

namespace vcas {

// For storage alone: arithmetic converts it to float.
class bfloat16 {
 public:
  bfloat16() = default;
  // The nearest, ties to even; infinity beyond the largest; a NaN stays one.
  VCAS_HOST_DEVICE explicit bfloat16(float x) : bits_(rounded(x)) {}

  VCAS_HOST_DEVICE operator float() const {
    const std::uint32_t word = static_cast<std::uint32_t>(bits_) << 16;
    float x;
    memcpy(&x, &word, sizeof x);
    return x;
  }
  VCAS_HOST_DEVICE std::uint16_t bits() const { return bits_; }

 private:
  VCAS_HOST_DEVICE static std::uint16_t rounded(float x) {
    std::uint32_t word;
    memcpy(&word, &x, sizeof word);
    constexpr std::uint32_t kQuiet = 0x00400000u;  // else a NaN could lose all it differs in
    if (x != x) return static_cast<std::uint16_t>((word | kQuiet) >> 16);
    const std::uint32_t odd = word >> 16 & 1;
    return static_cast<std::uint16_t>((word + 0x7FFFu + odd) >> 16);
  }

  std::uint16_t bits_;
};

}  // namespace vcas
