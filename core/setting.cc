#include "core/setting.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "core/error.h"

namespace vcas {
namespace {

using Json = nlohmann::ordered_json;

template <class Element>
Json scalar_to_json(const Element& value, const std::string& key) {
  if constexpr (std::is_same_v<Element, double>)
    if (!std::isfinite(value))
      throw Error(ExitCode::kBadConfig,
                  fmt::format("{} is {}, and JSON has no such number", key, value),
                  "mend its default, or the program that sets it");
  return value;
}

Json scalar_to_json(const Duration& duration, const std::string& key) {
  if (duration.unit() != duration.plain()) return duration.text();
  if (duration.unit() == Duration::Unit::kSteps) return duration.steps();
  return scalar_to_json(duration.amount(), key);
}

Json value_to_json(const Setting& setting) {
  return with_value(setting, [&](const auto* value) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(value)>>;
    Json json;  // null
    if constexpr (ValueType<T>::kList) {
      json = Json::array();
      for (const auto& element : *value) json.push_back(scalar_to_json(element, setting.key));
    } else if constexpr (ValueType<T>::kOptional) {
      if (value->has_value()) json = scalar_to_json(**value, setting.key);
    } else {
      json = scalar_to_json(*value, setting.key);
    }
    return json;
  });
}

// Sections are left out; with kinds that are not chosen where `all_kinds`.
template <class S>
void list_settings(S& section, bool all_kinds, std::vector<S*>& list) {
  for (S& child : section.children) {
    if (child.is_section())
      list_settings(child, all_kinds, list);
    else
      list.push_back(&child);
  }
  if (!all_kinds) return;
  for (S& kind : section.other_kinds) list_settings(kind, all_kinds, list);
}

template <class S>
std::vector<S*> list_settings(S& root, bool all_kinds) {
  std::vector<S*> list;
  list_settings(root, all_kinds, list);
  return list;
}

}  // namespace

void Range::narrow(const Range& other) {
  if (other.low > low || (other.low == low && other.low_open)) {
    low = other.low;
    low_open = other.low_open;
  }
  if (other.high < high || (other.high == high && other.high_open)) {
    high = other.high;
    high_open = other.high_open;
  }
  if (!other.choices.empty()) choices = other.choices;
}

std::string Range::violation(double value) const {
  if (std::isnan(value)) return "must be a number";
  if (!(low_open ? value > low : value >= low)) return "must be " + low_phrase();
  if (!(high_open ? value < high : value <= high)) return "must be " + high_phrase();
  return {};
}

Range at_least(double low) { return {.low = low}; }
Range at_most(double high) { return {.high = high}; }
Range above(double low) { return {.low = low, .low_open = true}; }
Range below(double high) { return {.high = high, .high_open = true}; }
Range between(double low, double high) { return {.low = low, .high = high}; }
Range one_of(std::vector<std::string> choices) { return {.choices = std::move(choices)}; }

Setting& Setting::add_child(const char* child_name, const char* child_help) {
  const std::string_view letters = child_name;
  const auto is_letter = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  if (letters.empty() || !std::ranges::all_of(letters, is_letter))
    throw Error(ExitCode::kBadConfig, fmt::format("a setting is called \"{}\"", child_name),
                "names are made of letters, digits and _");
  const std::string child_key = key.empty() ? child_name : key + "." + child_name;
  if (std::ranges::find(children, child_name, &Setting::name) != children.end())
    throw Error(ExitCode::kBadConfig, fmt::format("two settings are called \"{}\"", child_key),
                "a part's settings need names that the section around them does not have");
  Setting& child = children.emplace_back();
  child.name = child_name;
  child.key = child_key;
  child.kind = kind;
  child.help = child_help;
  return child;
}

std::string Range::low_phrase() const {
  return fmt::format("{} {}", low_open ? "above" : "at least", low);
}
std::string Range::high_phrase() const {
  return fmt::format("{} {}", high_open ? "below" : "at most", high);
}

std::string type_phrase(const Setting& setting) {
  if (const Duration* const* duration = std::get_if<Duration*>(&setting.value))
    return (*duration)->plain() == Duration::Unit::kSteps
               ? "a whole number of steps, \"500st\" or \"3ep\""
               : "a number of epochs, \"3ep\" or \"500st\"";
  return with_value(setting, [](const auto* value) {
    return type_phrase<std::remove_const_t<std::remove_pointer_t<decltype(value)>>>();
  });
}

std::vector<Setting*> all_settings(Setting& root) { return list_settings(root, false); }
std::vector<const Setting*> all_settings(const Setting& root) { return list_settings(root, false); }
std::vector<const Setting*> settings_of_all_kinds(const Setting& root) {
  return list_settings(root, true);
}

Json settings_to_json(const Setting& setting) {
  if (!setting.is_section()) return value_to_json(setting);
  Json json = Json::object();
  for (const Setting& child : setting.children) json[child.name] = settings_to_json(child);
  return json;
}

}  // namespace vcas
