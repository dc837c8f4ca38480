// Settings of live structs, as `fields` lists them (core/config.h): name, help, range and place.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/duration.h"

namespace vcas {

// Which values a setting may take. A list is held to it element by element.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false, high_open = false;  // open: the bound itself is outside
  std::vector<std::string> choices = {};     // strings only; empty: any

  void narrow(const Range& other);
  // "must be at least 1", or an empty string when the value is inside. NaN is outside all ranges.
  std::string violation(double value) const;
  // What the program says of a bound that lies on one side: "at least 1", "above 0".
  std::string low_phrase() const;
  std::string high_phrase() const;
};

Range at_least(double low);
Range at_most(double high);
Range above(double low);
Range below(double high);
Range between(double low, double high);  // both bounds included
Range one_of(std::vector<std::string> choices);

class ConfigErrors;

// A section of older configurations, whose switch chose between two kinds of a Part.
struct FormerSection {
  std::string name;
  std::string flag, on, off;  // "enabled", and the kinds that true and false meant
};

// One setting, or one section of settings, of a live struct: what `fields` visits with.
struct Setting {
  using Pointer =
      std::variant<std::monostate, bool*, int*, std::int64_t*, std::uint64_t*, double*,
                   std::string*, Duration*, std::vector<double>*, std::vector<int>*,
                   std::vector<std::string>*, std::optional<int>*, std::optional<std::int64_t>*,
                   std::optional<double>*, std::optional<std::string>*>;

  std::string name, key, help;   // key: "train.learning_rate"; empty for the root
  std::string former_key;        // is read too; empty: there is none
  FormerSection former_section;  // of a section; is read too; without a name there is none
  Range range;
  Pointer value;                  // a section has none
  std::vector<Setting> children;  // of a section
  std::vector<std::function<void(ConfigErrors&)>> checks;
  bool chooses_kind = false;         // of the settings beside it: the key of a Part (core/part.h)
  std::string kind;                  // of a Part, that has this setting; empty: there is no choice
  std::vector<Setting> other_kinds;  // sections with the settings of kinds that are not chosen

  bool is_section() const { return std::holds_alternative<std::monostate>(value); }

  template <class T, class... Ranges>
  void field(const char* field_name, T& place, const char* field_help, const Ranges&... ranges) {
    Setting& child = add_child(field_name, field_help);
    child.value = &place;
    (child.range.narrow(ranges), ...);
  }

  // The field of a Part that chooses, and the settings of one of its kinds.
  void choice(const char* choice_key, std::string& type, const char* choice_help,
              const Range& choices) {
    field(choice_key, type, choice_help, choices);
    children.back().chooses_kind = true;
  }
  template <class Kind>
  void settings_of(const std::string& type, Kind& place, bool chosen) {
    Setting& section = chosen ? *this : other_kinds.emplace_back();
    section.key = key;
    section.kind = type;
    // A kind without `fields` has no settings.
    if constexpr (requires { place.fields(section); }) section.bind(place);
    if (chosen) kind.clear();
  }

  // The key that the last field had in older configurations.
  void formerly(const char* old_key) { children.back().former_key = old_key; }
  // The same for the last section, at the top, which holds a Part.
  void formerly(const FormerSection& section) { children.back().former_section = section; }

  template <class Section>
  void section(const char* section_name, Section& place, const char* section_help) {
    section(section_name, section_help).bind(place);
  }
  // For fields of several structs; valid until more is added to this section.
  Setting& section(const char* section_name, const char* section_help) {
    return add_child(section_name, section_help);
  }

  template <class Section>
  void bind(Section& place) {
    place.fields(*this);
    if constexpr (requires(const Section& s, ConfigErrors& e) { s.validate(e); })
      checks.push_back([&place](ConfigErrors& errors) { std::as_const(place).validate(errors); });
  }

 private:
  Setting& add_child(const char* child_name, const char* child_help);
};

template <class Config>
Setting describe(Config& config) {
  Setting root;
  root.bind(config);
  return root;
}

// What the type of a setting is made of.
template <class T>
struct ValueType {  // a plain value
  using Element = T;
  static constexpr bool kList = false, kOptional = false;
};
template <class T>
struct ValueType<std::vector<T>> {
  using Element = T;
  static constexpr bool kList = true, kOptional = false;
};
template <class T>
struct ValueType<std::optional<T>> {
  using Element = T;
  static constexpr bool kList = false, kOptional = true;
};

template <class T>
constexpr bool kIsInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;

// The name of the type in a JSON schema.
template <class T>
const char* schema_type() {
  if (std::is_same_v<T, bool>) return "boolean";
  if (std::is_same_v<T, std::string>) return "string";
  return kIsInteger<T> ? "integer" : "number";
}

// Calls `use` with the typed pointer of a setting that is no section.
template <class Use>
auto with_value(const Setting& setting, Use use) {
  return std::visit(
      [&](auto pointer) {
        if constexpr (std::is_same_v<decltype(pointer), std::monostate>)
          return decltype(use(static_cast<int*>(nullptr)))();  // sections are never asked
        else
          return use(pointer);
      },
      setting.value);
}

// "an integer", "a list of strings"
template <class T>
std::string type_phrase() {
  using Element = typename ValueType<T>::Element;
  const std::string type = schema_type<Element>();
  if (ValueType<T>::kList) return "a list of " + type + "s";
  if (type == "boolean") return "true or false";
  return (type == "integer" ? "an " : "a ") + type + (ValueType<T>::kOptional ? " or null" : "");
}
std::string type_phrase(const Setting& setting);

// Settings, without sections, in the order of declaration.
std::vector<Setting*> all_settings(Setting& root);
std::vector<const Setting*> all_settings(const Setting& root);
// The same with the settings of kinds that are not chosen.
std::vector<const Setting*> settings_of_all_kinds(const Setting& root);

nlohmann::ordered_json settings_to_json(const Setting& setting);

}  // namespace vcas
