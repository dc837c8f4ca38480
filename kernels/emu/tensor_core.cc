#include "kernels/emu/tensor_core.h"

#include <bit>
#include <cmath>

namespace vcas::emu {
namespace {

constexpr std::uint32_t kTf32Bits = 0xFFFFE000u;  // sign, exponent, 10 bits of mantissa

float tf32(std::uint32_t bits) { return std::bit_cast<float>(bits & kTf32Bits); }

}  // namespace

float round_to_tf32(float x) {
  if (!std::isfinite(x)) return x;
  constexpr std::uint32_t kHalf = (~kTf32Bits + 1) / 2;
  return tf32(std::bit_cast<std::uint32_t>(x) + kHalf);
}

// Lane 4g + t holds a(g, t), a(g+8, t), a(g, t+4), a(g+8, t+4); b(t, g), b(t+4, g); c(g, 2t),
// c(g, 2t+1), c(g+8, 2t), c(g+8, 2t+1).
void mma_m16n8k8_tf32(const void* const* lanes) {
  float a[16][8], b[8][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& own = *static_cast<const MmaLane*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) a[g + i % 2 * 8][t + i / 2 * 4] = tf32(own.a[i]);
    for (int i = 0; i < 2; ++i) b[t + i * 4][g] = tf32(own.b[i]);
  }
  for (int lane = 0; lane < 32; ++lane) {
    const auto& own = *static_cast<const MmaLane*>(lanes[lane]);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      for (int k = 0; k < 8; ++k) own.c[i] += a[row][k] * b[k][column];
    }
  }
}

}  // namespace vcas::emu
