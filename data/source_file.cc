#include "data/source_file.h"

#define XXH_INLINE_ALL  // so that no library is linked for one function
#include <xxhash.h>

#include "core/files.h"

namespace vcas {

SourceFile source_file(const std::filesystem::path& path) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_64bits_reset(&state);
  InputFile(path).read_pieces([&](std::span<const std::byte> piece) {
    XXH3_64bits_update(&state, piece.data(), piece.size());
  });
  return {.path = path, .hash = XXH3_64bits_digest(&state)};
}

}  // namespace vcas
