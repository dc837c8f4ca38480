// The safetensors format: u64 header length, JSON header, one gapless byte buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/mapped_file.h"

namespace vcas {

// What a file can hold: more than DType, which is what we compute with. The order is the one in
// which the format's own library lays tensors out, last first: wide types ahead of narrow ones.
enum class StoredType : std::uint8_t { kBool, kU8, kF16, kBF16, kI32, kF32, kF64, kI64 };

std::string_view stored_type_name(StoredType dtype);  // "F32"
std::size_t stored_type_bytes(StoredType dtype);
std::string shape_text(std::span<const std::int64_t> shape);  // "[2, 3]"

struct StoredTensor {
  std::string name;
  StoredType dtype = StoredType::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  // of a file that was read: maybe unaligned
};

struct SafetensorsContent {
  std::vector<StoredTensor> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
};

// Reads a whole file in memory; the tensors point into `bytes`. `file` is for messages. Throws
// kBadData unless every rule of the format holds.
SafetensorsContent parse_safetensors(std::span<const std::byte> bytes, const std::string& file);

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::string& path() const { return path_; }
  const std::vector<StoredTensor>& tensors() const { return content_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return content_.metadata; }
  const StoredTensor* find(std::string_view name) const;  // null where there is none

  // F32 as it is, F16, BF16 and F64 converted; kBadData for the other types.
  void read_floats(const StoredTensor& tensor, std::span<float> out) const;
  std::vector<float> read_floats(const StoredTensor& tensor) const;

 private:
  std::string path_;
  MappedFile file_;
  SafetensorsContent content_;
};

// Writes the bytes that the format's own library would write. "format": "pt" is added to the
// metadata: transformers refuses files without it.
void write_safetensors(const std::filesystem::path& path, std::vector<StoredTensor> tensors,
                       std::map<std::string, std::string> metadata = {});

}  // namespace vcas
