// Code points as text.
#pragma once

#include <cstdint>
#include <string>

inline std::string utf8(std::uint32_t point) {
  std::string text;
  if (point < 0x80) return text += static_cast<char>(point);
  const int more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
  text += static_cast<char>((0xFF00 >> (more + 1)) | (point >> (6 * more)));
  for (int i = more - 1; i >= 0; --i) text += static_cast<char>(0x80 | ((point >> (6 * i)) & 0x3F));
  return text;
}
