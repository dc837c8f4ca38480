// The judge of what a JSON schema accepts: the part of draft 7 that `vcas schema` writes. A keyword
// that is not listed here is an error, so that none goes unlooked at.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <stdexcept>
#include <string>

namespace vcas {

inline bool has_json_type(const std::string& type, const nlohmann::json& value) {
  if (type == "number") return value.is_number();
  if (type == "integer") return value.is_number_integer();  // 2.0 is none, as for the reader
  return type == value.type_name();
}

inline bool accepts(const nlohmann::json& schema, const nlohmann::json& value);

// The pattern may match anywhere, as in JSON schemas.
inline bool matches(const std::string& pattern, const std::string& text) {
  return std::regex_search(text, std::regex(pattern));
}

// Whether the object's members fit the keywords that speak of members.
inline bool accepts_members(const nlohmann::json& schema, const nlohmann::json& object) {
  const nlohmann::json none = nlohmann::json::object();
  const nlohmann::json properties = schema.value("properties", none);
  const nlohmann::json patterns = schema.value("patternProperties", none);
  return std::ranges::all_of(object.items(), [&](const auto& member) {
    bool known = properties.contains(member.key());
    if (known && !accepts(properties[member.key()], member.value())) return false;
    for (const auto& [pattern, rule] : patterns.items())
      if (matches(pattern, member.key())) {
        known = true;
        if (!accepts(rule, member.value())) return false;
      }
    return known || schema.value("additionalProperties", true);
  });
}

// As in draft 7, a keyword says nothing of values of other types than its own.
inline bool accepts(const nlohmann::json& schema, const nlohmann::json& value) {
  const auto is_equal = [&](const nlohmann::json& other) { return other == value; };
  const auto holds = [&](const std::string& keyword, const nlohmann::json& operand) {
    if (keyword == "type") {
      if (operand.is_string()) return has_json_type(operand, value);
      return std::ranges::any_of(
          operand, [&](const std::string& type) { return has_json_type(type, value); });
    }
    if (keyword == "enum") return std::ranges::any_of(operand, is_equal);
    if (keyword == "anyOf")
      return std::ranges::any_of(operand,
                                 [&](const nlohmann::json& one) { return accepts(one, value); });
    if (keyword == "minimum") return !value.is_number() || value >= operand;
    if (keyword == "exclusiveMinimum") return !value.is_number() || value > operand;
    if (keyword == "maximum") return !value.is_number() || value <= operand;
    if (keyword == "exclusiveMaximum") return !value.is_number() || value < operand;
    if (keyword == "items")
      return !value.is_array() || std::ranges::all_of(value, [&](const nlohmann::json& item) {
        return accepts(operand, item);
      });
    if (keyword == "pattern") return !value.is_string() || matches(operand, value);
    if (keyword == "properties" || keyword == "patternProperties" ||
        keyword == "additionalProperties")
      return !value.is_object() || accepts_members(schema, value);
    if (keyword == "$schema" || keyword == "description" || keyword == "default") return true;
    throw std::invalid_argument("json_schema_check.h does not know the keyword " + keyword);
  };
  return std::ranges::all_of(
      schema.items(), [&](const auto& keyword) { return holds(keyword.key(), keyword.value()); });
}

}  // namespace vcas
