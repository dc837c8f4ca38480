// A 64-bit fingerprint of content, for keys of caches: FNV-1a (Fowler, Noll, Vo). Not for secrets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace vcas {

class ContentHash {
 public:
  // Every part also counts by its length: {"ab", "c"} differs from {"a", "bc"}.
  void add(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) mix(static_cast<std::uint8_t>(byte));
    add_number(bytes.size());
  }
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  void add_number(std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) mix(static_cast<std::uint8_t>(number >> shift));
  }

  std::uint64_t value() const { return value_; }

 private:
  void mix(std::uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001B3ull; }

  std::uint64_t value_ = 0xCBF29CE484222325ull;
};

}  // namespace vcas
