#include "core/xxh3.h"

#define XXH_INLINE_ALL  // so that no library is linked for one function
#include <xxhash.h>

#include "core/files.h"

namespace vcas {

std::uint64_t xxh3(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t xxh3_of_file(const std::filesystem::path& path) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_64bits_reset(&state);
  InputFile(path).read_pieces([&](std::span<const std::byte> piece) {
    XXH3_64bits_update(&state, piece.data(), piece.size());
  });
  return XXH3_64bits_digest(&state);
}

}  // namespace vcas
