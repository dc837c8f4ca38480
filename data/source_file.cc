#include "data/source_file.h"

#include <fstream>
#include <string_view>
#include <vector>

#include "core/content_hash.h"
#include "core/files.h"

namespace vcas {

SourceFile source_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_errno(ExitCode::kNoInput, path, "cannot open");
  std::vector<char> block(1 << 20);
  ContentHash hash;
  do {
    file.read(block.data(), std::ssize(block));
    hash.add(std::string_view(block.data(), static_cast<std::size_t>(file.gcount())));
  } while (file);
  return {path, hash.value()};
}

}  // namespace vcas
