// Texts that are numbers.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace vcas {

// The number that the whole text is. `options`: as std::from_chars takes them.
template <class Number, class... Options>
std::optional<Number> parse_number(std::string_view text, Options... options) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, value, options...);
  if (status != std::errc() || stop != end) return std::nullopt;
  return value;
}

}  // namespace vcas
