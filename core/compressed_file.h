// Files as they are, or compressed by gzip, xz or zstd. The first bytes tell which.
// xz and zstd need a build that found liblzma and libzstd.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/files.h"

namespace vcas {

// `path` where it exists, else `path`.gz, .xz or .zst, if any does.
std::optional<std::filesystem::path> plain_or_compressed(const std::filesystem::path& path);
// The same. None of them: kNoInput, with `missing_hint`.
std::filesystem::path find_plain_or_compressed(const std::filesystem::path& path,
                                               const std::string& missing_hint = {});

// The content of a file from its beginning to its end, decompressed piece by piece.
// A file may have many members. Missing or unreadable: kNoInput.
// kBadData: corrupt, cut off, followed by other bytes, or not what the name's ending says.
// A compression that this build lacks: kUnavailable.
class DecompressedFile {
 public:
  explicit DecompressedFile(const std::filesystem::path& path);
  ~DecompressedFile();
  DecompressedFile(const DecompressedFile&) = delete;
  DecompressedFile& operator=(const DecompressedFile&) = delete;

  // Whether it may hold more bytes than it has.
  bool is_compressed() const { return decoder_ != nullptr; }
  // Fills `out` from its front. Returns how much of it: less than its size only at the end.
  std::size_t read(std::span<std::uint8_t> out);
  // The next bytes, up to `most`. The memory grows with what is there, not with `most`.
  std::vector<std::uint8_t> read_up_to(std::size_t most);

  class Decoder;

 private:
  void skip_zeros();

  std::string name_;
  InputFile file_;
  std::unique_ptr<Decoder> decoder_;   // none: the bytes as they are
  bool padded_ = false;                // zeros may follow a member
  std::vector<std::byte> piece_;       // of the file
  std::span<const std::byte> unread_;  // the rest of it
  std::size_t consumed_ = 0;           // of the file
  bool inside_ = false;                // of a member
};

// "gzip: yes  xz: yes  zstd: no"
std::string compression_formats();

// The whole content. More than `most` bytes: kBadData, however small the file is.
std::vector<std::uint8_t> read_decompressed(const std::filesystem::path& path, std::size_t most);

}  // namespace vcas
