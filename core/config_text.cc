// What a configuration looks like: keys, schema, help and printed files.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/config.h"

namespace vcas {

std::vector<std::string> setting_keys(const Setting& root) {
  std::vector<std::string> keys;
  for (const Setting* setting : settings_of_all_kinds(root))
    if (std::ranges::count(keys, setting->key) == 0) keys.push_back(setting->key);
  return keys;
}

std::vector<std::string> former_keys(const Setting& root) {
  std::vector<std::string> keys;
  for (const Setting* setting : settings_of_all_kinds(root))
    if (!setting->former_key.empty()) keys.push_back(setting->former_key);
  for (const Setting& section : root.children) {
    const FormerSection& former = section.former_section;
    if (former.name.empty()) continue;
    keys.push_back(former.name + "." + former.flag);
    for (const std::string& key : setting_keys(root))
      if (key.starts_with(section.key + "."))
        keys.push_back(former.name + key.substr(section.key.size()));
  }
  return keys;
}

namespace {

using Json = nlohmann::ordered_json;

Json element_schema(const char* type, const Range& range) {
  Json schema{{"type", type}};
  if (std::isfinite(range.low)) schema[range.low_open ? "exclusiveMinimum" : "minimum"] = range.low;
  if (std::isfinite(range.high))
    schema[range.high_open ? "exclusiveMaximum" : "maximum"] = range.high;
  if (!range.choices.empty()) schema["enum"] = range.choices;
  return schema;
}

Json duration_schema(const Duration& duration, const Range& range) {
  const bool steps = duration.plain() == Duration::Unit::kSteps;
  Json schema = element_schema(steps ? "integer" : "number", range);
  schema["type"] = {schema["type"], "string"};
  schema["pattern"] = Duration::kPattern;
  return schema;
}

Json setting_schema(const Setting& setting) {
  Json schema = with_value(setting, [&](const auto* value) -> Json {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(value)>>;
    if constexpr (std::is_same_v<T, Duration>) return duration_schema(*value, setting.range);
    using Element = typename ValueType<T>::Element;
    Range range = setting.range;
    if (std::is_same_v<Element, int>)
      range.narrow(between(std::numeric_limits<int>::min(), std::numeric_limits<int>::max()));
    if (std::is_same_v<Element, std::uint64_t>) range.narrow(at_least(0));
    Json element = element_schema(schema_type<Element>(), range);
    if (ValueType<T>::kList) return Json{{"type", "array"}, {"items", std::move(element)}};
    if (ValueType<T>::kOptional) {
      element["type"] = {schema_type<Element>(), "null"};
      if (element.contains("enum")) element["enum"].push_back(nullptr);
    }
    return element;
  });
  schema["description"] = setting.help;
  schema["default"] = settings_to_json(setting);
  return schema;
}

// Kinds may have a setting of the same name, each with a range of its own.
void accept_too(Json& property, const Json& other) {
  const auto range = [](Json schema) {
    for (const char* key : {"description", "default"}) schema.erase(key);
    return schema;
  };
  const bool is_list = property.contains("anyOf");
  const Json known = is_list ? property["anyOf"] : Json::array({property});
  if (std::ranges::any_of(known, [&](const Json& one) { return range(one) == range(other); }))
    return;
  if (!is_list) property = Json{{"anyOf", known}};
  property["anyOf"].push_back(other);
}

// Kinds may have a section of the same name, each with settings of its own.
void add_properties(const Setting& section, Json& schema);

Json section_schema(const Setting& section) {
  Json schema{{"type", "object"}};
  if (!section.help.empty()) schema["description"] = section.help;
  schema["properties"] = Json::object();
  schema["patternProperties"] = {{"^x-", Json::object()}};
  schema["additionalProperties"] = false;
  add_properties(section, schema);
  return schema;
}

void add_properties(const Setting& section, Json& schema) {
  Json& properties = schema["properties"];
  for (const Setting& child : section.children) {
    Json& property = properties[child.name];
    if (property.is_null())
      property = child.is_section() ? section_schema(child) : setting_schema(child);
    else if (child.is_section())
      add_properties(child, property);
    else
      accept_too(property, setting_schema(child));
  }
  for (const Setting& kind : section.other_kinds) add_properties(kind, schema);
}

struct PrintedLine {
  std::string text, comment;
};

bool has_shown(const Setting& setting, const SettingFilter& shown) {
  if (!setting.is_section()) return shown(setting);
  return std::ranges::any_of(setting.children,
                             [&](const Setting& child) { return has_shown(child, shown); });
}

void print_section(const Setting& section, const SettingFilter& shown,
                   const std::function<std::string(const Setting&)>& comment,
                   const std::string& indent, std::vector<PrintedLine>& lines) {
  std::vector<const Setting*> children;
  for (const Setting& child : section.children)
    if (has_shown(child, shown)) children.push_back(&child);
  for (const Setting* child : children) {
    const std::string comma = child == children.back() ? "" : ",";
    const std::string key = fmt::format("{}\"{}\": ", indent, child->name);
    if (child->is_section()) {
      lines.push_back({key + "{", {}});
      print_section(*child, shown, comment, indent + "  ", lines);
      lines.push_back({indent + "}" + comma, {}});
    } else {
      lines.push_back({key + settings_to_json(*child).dump() + comma, comment(*child)});
    }
  }
}

}  // namespace

Json settings_schema(const Setting& root) {
  Json schema{{"$schema", "http://json-schema.org/draft-07/schema#"}};
  schema.update(section_schema(root));
  schema["properties"]["$schema"] = {{"type", "string"}};
  schema["properties"]["config_version"] = {{"type", "integer"},
                                            {"minimum", 1},
                                            {"maximum", kConfigVersion},
                                            {"description", "Form of this file."},
                                            {"default", 1}};
  for (const Setting* setting : all_settings(root)) {
    const std::string& former = setting->former_key;
    if (former.empty()) continue;
    Json* section = &schema;
    std::size_t begin = 0;
    for (std::size_t dot; (dot = former.find('.', begin)) != std::string::npos; begin = dot + 1)
      section = &(*section)["properties"][former.substr(begin, dot - begin)];
    Json& property = (*section)["properties"][former.substr(begin)] = setting_schema(*setting);
    property["description"] = fmt::format("The former name of {}.", setting->key);
  }
  for (const Setting& section : root.children) {
    const FormerSection& former = section.former_section;
    if (former.name.empty()) continue;
    Json& property = schema["properties"][former.name] = section_schema(section);
    property["description"] = fmt::format("The former name of {}.", section.key);
    property["properties"][former.flag] = {
        {"type", "boolean"},
        {"description",
         fmt::format("Formerly for type: true is {}, false {}.", former.on, former.off)}};
  }
  return schema;
}

std::string settings_help(const Setting& root) {
  struct Paragraph {
    std::string key, rest;
    std::vector<std::string> kinds;
  };
  std::vector<Paragraph> paragraphs;
  for (const Setting* setting : settings_of_all_kinds(root)) {
    const Range& range = setting->range;
    std::string type = type_phrase(*setting);
    if (!range.choices.empty()) type = fmt::format("{}", fmt::join(range.choices, ", "));
    const bool has_low = std::isfinite(range.low), has_high = std::isfinite(range.high);
    if (has_low) type += ", " + range.low_phrase();
    if (has_high) type += (has_low ? " and " : ", ") + range.high_phrase();
    const std::string rest = fmt::format("    {}\n    {}; default {}\n", setting->help, type,
                                         settings_to_json(*setting).dump());
    auto same = std::ranges::find_if(paragraphs, [&](const Paragraph& paragraph) {
      return paragraph.key == setting->key && paragraph.rest == rest;
    });
    if (same == paragraphs.end()) same = paragraphs.insert(same, {setting->key, rest, {}});
    if (!setting->kind.empty()) same->kinds.push_back(setting->kind);
  }
  std::string text;
  for (const auto& [key, rest, kinds] : paragraphs)
    text += fmt::format("{}{}\n{}", key,
                        kinds.empty() ? "" : fmt::format("  ({})", fmt::join(kinds, ", ")), rest);
  return text;
}

std::string print_settings(const Setting& root, const SettingFilter& shown,
                           const std::function<std::string(const Setting&)>& comment) {
  constexpr std::size_t kWidestColumn = 60;  // a longer line does not push all comments away
  std::vector<PrintedLine> lines;
  print_section(root, shown, comment, "  ", lines);
  std::size_t column = 0;
  for (const PrintedLine& line : lines)
    if (line.text.size() <= kWidestColumn) column = std::max(column, line.text.size());
  std::string text = "{\n";
  for (const PrintedLine& line : lines)
    text += line.comment.empty() ? line.text + "\n"
                                 : fmt::format("{:<{}}  // {}\n", line.text, column, line.comment);
  return text + "}\n";
}

std::string print_settings(const Setting& root, const Setting& defaults,
                           const ConfigOrigins& origins, PrintMode mode,
                           const SettingFilter& shown) {
  const std::vector<const Setting*> all = settings_of_all_kinds(defaults);
  std::set<std::string> changed;
  for (const Setting* setting : all_settings(root)) {
    const bool is_default = std::ranges::any_of(all, [&](const Setting* other) {
      return other->key == setting->key && other->kind == setting->kind &&
             settings_to_json(*other) == settings_to_json(*setting);
    });
    if (!is_default) changed.insert(setting->key);
  }
  return print_settings(
      root,
      [&](const Setting& setting) {
        return shown(setting) && (mode != PrintMode::kMinimal || changed.contains(setting.key));
      },
      [&](const Setting& setting) {
        if (mode != PrintMode::kOrigins) return std::string();
        // A program may have chosen another kind since the settings were read.
        return origins.has(setting.key) ? origins.at(setting.key).label : ConfigOrigin().label;
      });
}

std::vector<ConfigChange> settings_changes(const Setting& before, const Setting& after) {
  std::map<std::string, const Setting*> new_settings;
  for (const Setting* setting : all_settings(after)) new_settings[setting->key] = setting;
  std::vector<ConfigChange> changes;
  for (const Setting* setting : all_settings(before)) {
    const auto found = new_settings.find(setting->key);
    if (found == new_settings.end()) continue;
    std::string old_text = settings_to_json(*setting).dump();
    std::string new_text = settings_to_json(*found->second).dump();
    if (old_text != new_text)
      changes.push_back({setting->key, std::move(old_text), std::move(new_text)});
  }
  return changes;
}

}  // namespace vcas
