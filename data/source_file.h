// The files that data come from: a run that goes on must find the same ones.
#pragma once

#include <cstdint>
#include <filesystem>

namespace vcas {

struct SourceFile {
  std::filesystem::path path;
  // XXH3 of its bytes, compressed as they are; of a folder, ContentHash of names and sizes in it.
  std::uint64_t hash = 0;
};

// Reads the whole file. Missing or unreadable: kNoInput.
SourceFile source_file(const std::filesystem::path& path);

}  // namespace vcas
