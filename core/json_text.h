// JSON text in which every key and value knows its place, so that errors can point at it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vcas {

struct JsonNode {
  std::string name = {};                   // the key, when the parent is an object
  std::size_t key_begin = 0, key_end = 0;  // byte offsets, quotes included
  std::size_t begin = 0, end = 0;
  nlohmann::ordered_json value = {};  // a scalar, or an empty list or object to tell the type
  std::vector<JsonNode> children = {};
};

struct JsonSyntaxError {
  std::size_t offset = 0;
  std::string message;
};

// After a syntax error `root` holds what was complete before it.
struct JsonDocument {
  JsonNode root;
  std::optional<JsonSyntaxError> error;
};

JsonDocument parse_json(std::string_view text, bool ignore_comments);

// A named text. Lines and columns count from 1; a column is one code point, a tab one column.
struct SourceText {
  std::string name;
  std::string text;

  std::size_t line(std::size_t offset) const;
  std::size_t column(std::size_t offset) const;  // a byte order mark has none
  std::string place(std::size_t offset) const;   // name:line:column
  // Two lines: the numbered source line that holds `begin`, and a caret with tildes up to `end`.
  std::string underline(std::size_t begin, std::size_t end) const;
};

}  // namespace vcas
