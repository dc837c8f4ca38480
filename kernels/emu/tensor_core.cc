#include "kernels/emu/tensor_core.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace vcas::emu {
namespace {

constexpr std::uint32_t kTf32Bits = 0xFFFFE000u;  // sign, exponent, 10 bits of mantissa

float tf32(std::uint32_t bits) { return std::bit_cast<float>(bits & kTf32Bits); }

// The low and the high half.
float bf16(std::uint32_t pair, int half) {
  return std::bit_cast<float>(half == 0 ? pair << 16 : pair & 0xFFFF0000u);
}

}  // namespace

float round_to_tf32(float x) {
  if (!std::isfinite(x)) return x;
  constexpr std::uint32_t kHalf = (~kTf32Bits + 1) / 2;
  return tf32(std::bit_cast<std::uint32_t>(x) + kHalf);
}

// Each lane has four numbers of c: c(g, 2t), c(g, 2t+1), c(g+8, 2t), c(g+8, 2t+1) of lane 4g + t.
template <int kDepth>
void add_product(const void* const* lanes, const float (&a)[16][kDepth],
                 const float (&b)[kDepth][8]) {
  for (int lane = 0; lane < 32; ++lane) {
    const auto& own = *static_cast<const MmaLane*>(lanes[lane]);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      for (int k = 0; k < kDepth; ++k) own.c[i] += a[row][k] * b[k][column];
    }
  }
}

// Lane 4g + t holds a(g, t), a(g+8, t), a(g, t+4), a(g+8, t+4); b(t, g), b(t+4, g); c as above.
void mma_m16n8k8_tf32(const void* const* lanes) {
  float a[16][8], b[8][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& own = *static_cast<const MmaLane*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) a[g + i % 2 * 8][t + i / 2 * 4] = tf32(own.a[i]);
    for (int i = 0; i < 2; ++i) b[t + i * 4][g] = tf32(own.b[i]);
  }
  add_product(lanes, a, b);
}

// Lane 4g + t holds the pairs a(g, 2t..), a(g+8, 2t..), a(g, 2t+8..), a(g+8, 2t+8..); b(2t.., g),
// b(2t+8.., g); c as above.
void mma_m16n8k16_bf16(const void* const* lanes) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& own = *static_cast<const MmaLane*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 4; ++i) a[g + i % 2 * 8][2 * t + i / 2 * 8 + half] = bf16(own.a[i], half);
      for (int i = 0; i < 2; ++i) b[2 * t + i * 8 + half][g] = bf16(own.b[i], half);
    }
  }
  add_product(lanes, a, b);
}

// Lane 8m + r names row r of block m; lane 4g + t gets entries (g, 2t) and (g, 2t+1) of each block.
void ldmatrix_x4(const void* const* lanes) {
  std::uint32_t row[32][4];  // of a block each, in pairs
  for (int lane = 0; lane < 32; ++lane)
    std::memcpy(row[lane], static_cast<const LdmatrixLane*>(lanes[lane])->row, sizeof row[0]);
  for (int lane = 0; lane < 32; ++lane)
    for (int m = 0; m < 4; ++m)
      static_cast<const LdmatrixLane*>(lanes[lane])->out[m] = row[8 * m + lane / 4][lane % 4];
}

// The same, transposed: entries (2t, g) and (2t+1, g).
void ldmatrix_x4_trans(const void* const* lanes) {
  std::uint16_t block[4][8][8];
  for (int lane = 0; lane < 32; ++lane)
    std::memcpy(block[lane / 8][lane % 8], static_cast<const LdmatrixLane*>(lanes[lane])->row,
                sizeof block[0][0]);
  for (int lane = 0; lane < 32; ++lane) {
    std::uint32_t* out = static_cast<const LdmatrixLane*>(lanes[lane])->out;
    const int g = lane / 4, t = lane % 4;
    for (int m = 0; m < 4; ++m)
      out[m] = block[m][2 * t][g] | static_cast<std::uint32_t>(block[m][2 * t + 1][g]) << 16;
  }
}

}  // namespace vcas::emu
