// The files that data come from: a run that goes on must find the same ones.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace vcas {

struct SourceFile {
  std::filesystem::path path;
  // XXH3 of its bytes, compressed as they are; of a folder, ContentHash of names and sizes in it.
  std::uint64_t hash = 0;
  // When the newest file of a folder was written, by the clock of the file system.
  std::optional<std::int64_t> written = {};
};

// Reads the whole file. Missing or unreadable: kNoInput.
SourceFile source_file(const std::filesystem::path& path);

}  // namespace vcas
