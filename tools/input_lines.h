// Lines of text from standard input: those that TextLines reads from a file.
#pragma once

#include <cstddef>
#include <string_view>

namespace vcas {

class InputLines {
 public:
  InputLines() = default;
  InputLines(const InputLines&) = delete;
  InputLines& operator=(const InputLines&) = delete;
  ~InputLines();

  // The next line without its end, valid until the next call; false after the last.
  // Throws kIoError where the input cannot be read: it may be a folder.
  bool next(std::string_view& line);
  // Throws kBadData with the number of the line that next() gave last.
  [[noreturn]] void fail_line(std::string_view fault) const;

 private:
  char* buffer_ = nullptr;
  std::size_t capacity_ = 0, number_ = 0;
  std::string_view line_;  // that next() gave last
};

}  // namespace vcas
