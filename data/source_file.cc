#include "data/source_file.h"

#include "core/content_hash.h"
#include "core/files.h"

namespace vcas {

SourceFile source_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  ContentHash hash;
  hash.add(file.bytes());
  return {path, hash.value()};
}

}  // namespace vcas
