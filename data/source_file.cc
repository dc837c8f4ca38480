#include "data/source_file.h"

#include <cstring>

#include "core/error.h"
#include "core/xxh3.h"

namespace vcas {

void FolderContents::note(std::size_t file, std::string_view bytes, const std::string& path) {
  std::uint64_t before = 0;
  std::uint64_t hash = xxh3(std::as_bytes(std::span(bytes)));
  if (hash == 0) hash = 1;
  if (hashes_.at(file).compare_exchange_strong(before, hash) || before == hash) return;
  throw Error(ExitCode::kBadData,
              path + ": is not what this run has read before, here or on another rank",
              "all ranks need the same files; bring the file back, or add --resume-mode=fork to "
              "start a new run from the last checkpoint");
}

std::string FolderContents::hashes() const {
  std::string bytes;
  for (const std::atomic<std::uint64_t>& hash : hashes_) {
    const std::uint64_t value = hash;
    bytes.append(reinterpret_cast<const char*>(&value), kBytes);
  }
  return bytes;
}

void FolderContents::expect(std::string_view hashes) {
  VCAS_CHECK(hashes.size() == kBytes * hashes_.size(), "hashes of other files");
  for (std::size_t i = 0; i < hashes_.size(); ++i) {
    std::uint64_t value = 0;
    std::memcpy(&value, hashes.data() + kBytes * i, kBytes);
    if (value != 0) hashes_[i] = value;
  }
}

SourceFile source_file(const std::filesystem::path& path) {
  return {.path = path, .hash = xxh3_of_file(path)};
}

void check_unchanged(std::span<const SourceFile> files) {
  for (const SourceFile& file : files)
    if (xxh3_of_file(file.path) != file.hash)
      throw Error(ExitCode::kBadData, file.path.string() + ": changed while it was read",
                  "start again when nothing writes it any more");
}

}  // namespace vcas
