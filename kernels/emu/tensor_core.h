// What a tensor core computes, on the host.
#pragma once

#include <cstdint>

namespace vcas::emu {

// The nearest number with 10 bits of mantissa, as cvt.rna.tf32.f32 has it. Ties go away from zero.
float round_to_tf32(float x);

// What one lane gives to an mma: bits of TF32 or pairs of bf16. The sums become the results.
struct MmaLane {
  const std::uint32_t* a;  // 4
  const std::uint32_t* b;  // 2
  float* c;                // 4
};

// c += a b for the 32 lanes of a warp. `lanes` points to their MmaLane.
// The bits of a and b that TF32 lacks are ignored. Sums are f32, in the order of k.
void mma_m16n8k8_tf32(const void* const* lanes);
void mma_m16n8k16_bf16(const void* const* lanes);

// What one lane gives to ldmatrix.x4: the row that it names, and where its words go.
struct LdmatrixLane {
  const void* row;
  std::uint32_t* out;  // 4
};

void ldmatrix_x4(const void* const* lanes);
void ldmatrix_x4_trans(const void* const* lanes);

}  // namespace vcas::emu
