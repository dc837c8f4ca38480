// The files that data come from: a run that goes on must find the same ones.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vcas {

// XXH3 of each file of a folder, of those that were read. All may be called from any thread.
class FolderContents {
 public:
  static constexpr std::size_t kBytes = 8;  // of a file, in `hashes`

  explicit FolderContents(std::size_t files) : hashes_(files) {}

  // Notes the bytes of a file. Throws kBadData, naming `path`, if they are not those of before.
  void note(std::size_t file, std::string_view bytes, const std::string& path);
  // kBytes each, in the order of the files; zeros: it was not read.
  std::string hashes() const;
  // As if the files had been read that these are of. Zeros leave a file as it is.
  void expect(std::string_view hashes);

 private:
  std::vector<std::atomic<std::uint64_t>> hashes_;
};

struct SourceFile {
  std::filesystem::path path;
  // XXH3 of its bytes, compressed as they are; of a folder, ContentHash of names and sizes in it.
  std::uint64_t hash = 0;
  // This is for a folder whose files are read when their turn comes.
  std::shared_ptr<FolderContents> contents = {};
};

// Reads the whole file. Missing or unreadable: kNoInput.
SourceFile source_file(const std::filesystem::path& path);

// Files may change between their hash and their reading. Throws kBadData then, called after both.
void check_unchanged(std::span<const SourceFile> files);

}  // namespace vcas
