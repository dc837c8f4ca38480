// Code points of valid UTF-8.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace vcas {

// A to Z alone become small.
inline std::string ascii_lower(std::string text) {
  for (char& letter : text)
    if ('A' <= letter && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  return text;
}

inline bool starts_code_point(char byte) { return (byte & 0xC0) != 0x80; }

inline std::size_t code_points(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, starts_code_point));
}

// Bytes of the first `count` code points, or of all.
inline std::size_t bytes_of_code_points(std::string_view text, std::size_t count) {
  std::size_t end = 0;
  for (; end < text.size(); ++end)
    if (starts_code_point(text[end]) && count-- == 0) break;
  return end;
}

}  // namespace vcas
