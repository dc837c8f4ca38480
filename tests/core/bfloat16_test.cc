#include "core/bfloat16.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/dtype.h"
#include "core/tensor.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

float rounded(double x) { return bfloat16(static_cast<float>(x)); }

}  // namespace

TEST_CASE("bf16 rounds to the nearest, ties to even", "[bfloat16]") {
  const float ulp = 0x1p-7f;  // of 1
  CHECK(rounded(1) == 1);
  CHECK(rounded(1 + 0.49 * ulp) == 1);
  CHECK(rounded(1 + 0.5 * ulp) == 1);
  CHECK(rounded(1 + 0.51 * ulp) == 1 + ulp);
  CHECK(rounded(1 + 1.5 * ulp) == 1 + 2 * ulp);
  CHECK(rounded(-1 - 1.5 * ulp) == -1 - 2 * ulp);
  CHECK(rounded(2 - 0.25 * ulp) == 2);
  CHECK(std::signbit(rounded(-0.0)));
  CHECK(rounded(0x1p-130) == 0x1p-130f);  // below the smallest normal number
  CHECK(rounded(std::numeric_limits<float>::max()) == INFINITY);
  CHECK(rounded(-INFINITY) == -INFINITY);
}

TEST_CASE("bf16 keeps a NaN and every number it has", "[bfloat16]") {
  const std::uint32_t low_nan = 0x7F800001;  // what differs from infinity is in the lost half
  float x;
  std::memcpy(&x, &low_nan, sizeof x);
  CHECK(std::isnan(static_cast<float>(bfloat16(x))));
  CHECK(std::isnan(rounded(NAN)));
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 1u << 16; ++bits) {
    const std::uint32_t word = bits << 16;
    std::memcpy(&x, &word, sizeof x);
    if (!std::isnan(x)) wrong += bfloat16(x).bits() != bits;
  }
  CHECK(wrong == 0);
}

TEST_CASE("bf16 takes 2 bytes and has statistics in f32", "[bfloat16]") {
  CHECK(sizeof(bfloat16) == dtype_bytes(DType::kBF16));
  CHECK(dtype_name(DType::kBF16) == "bf16");
  CHECK(statistics_dtype(DType::kBF16) == DType::kF32);
  CHECK(DTypeOf<Compute<bfloat16>>::value == statistics_dtype(DType::kBF16));
}
