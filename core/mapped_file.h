// A read-only view of a whole file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

namespace vcas {

// The pages are read when they are touched. What then cannot be read ends the process, with a
// message and code 74: the file became shorter, or its disk failed. InputFile throws instead.
class MappedFile {
 public:
  // Throws as InputFile does.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const;

 private:
  struct Mapping;
  std::unique_ptr<Mapping> mapping_;  // null: the file is empty
};

}  // namespace vcas
