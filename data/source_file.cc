#include "data/source_file.h"

#define XXH_INLINE_ALL  // so that no library is linked for one function
#include <xxhash.h>

#include "core/files.h"

namespace vcas {

SourceFile source_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  return {path, XXH3_64bits(file.bytes().data(), file.bytes().size())};
}

}  // namespace vcas
