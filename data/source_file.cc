#include "data/source_file.h"

#include "core/content_hash.h"
#include "core/files.h"

namespace vcas {

SourceFile source_file(const std::filesystem::path& path) {
  ContentHash hash;
  hash.add(MappedFile(path).bytes());
  return {path, hash.value()};
}

}  // namespace vcas
