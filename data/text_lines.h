// Lines of a text file, plain or compressed, read piece by piece.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/compressed_file.h"

namespace vcas {

// Lines end with LF or CR LF; a byte order mark is left out. Errors as of DecompressedFile.
class TextLines {
 public:
  explicit TextLines(const std::filesystem::path& path);

  // The next line without its end; false after the last.
  bool next(std::string& line);
  // "path:12", the line that next() gave last; counts from 1.
  std::string place() const;
  std::int64_t line() const { return line_; }

 private:
  bool refill();

  std::string name_;
  DecompressedFile file_;
  std::vector<std::uint8_t> buffer_;
  std::string_view rest_;  // of the buffer
  std::int64_t line_ = 0;
};

// The mark at the beginning of a file belongs to no word.
std::string_view without_byte_order_mark(std::string_view text);

// What is wrong with a line whatever its format: "byte 7 is not valid UTF-8" or "byte 7 is NUL",
// counted from 1; empty where nothing is.
std::string text_fault(std::string_view line);
// What to do about it. A line of UTF-16 has a NUL.
std::string encoding_hint(std::string_view line);

}  // namespace vcas
