#include "core/philox.h"

#include <set>

#include "tests/support/catch.h"

using namespace vcas;

TEST_CASE("philox gives the Random123 known answers", "[philox]") {
  struct Known {
    std::uint32_t counter[4], key[2], want[4];
  };
  const Known known[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Known& k : known) {
    std::uint32_t c[4] = {k.counter[0], k.counter[1], k.counter[2], k.counter[3]};
    philox4x32_10(c, philox_keys(k.key[0], k.key[1]));
    for (int i = 0; i < 4; ++i) CHECK(c[i] == k.want[i]);
  }
}

TEST_CASE("uniforms stay strictly inside (0, 1)", "[philox]") {
  CHECK(uniform_from_bits(0) > 0.0f);
  CHECK(uniform_from_bits(0xFFFFFFFFu) < 1.0f);
}

TEST_CASE("no two random keys share an address", "[philox]") {
  std::set<std::pair<std::uint32_t, std::uint32_t>> seen;
  int count = 0;
  for (Stream stream : {Stream::kInit, Stream::kDropout, Stream::kGate, Stream::kWeight,
                        Stream::kProbe, Stream::kData})
    for (std::uint64_t step : {0ull, 1ull, 0xFFFFFFFFull, 0x100000000ull, 0xFFFFFFFFFFull})
      for (std::uint32_t site : {0u, 1u, 255u, 256u, 65535u})
        for (std::uint32_t repeat : {0u, 1u, 31u}) {
          const PhiloxAddress a = philox_address({7, stream, step, site, repeat});
          seen.insert({a.high0, a.high1});
          ++count;
        }
  CHECK(seen.size() == static_cast<std::size_t>(count));
}
