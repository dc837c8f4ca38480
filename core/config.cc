#include "core/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "core/json_value.h"
#include "core/nearest_name.h"

namespace vcas {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kShownErrors = 20;
constexpr const char* kVersionKey = "config_version";

// Keys of the user, for notes.
constexpr bool is_own_key(std::string_view name) { return name.starts_with("x-"); }

std::string did_you_mean(const std::string& name) {
  return name.empty() ? "" : fmt::format("  did you mean \"{}\"?\n", name);
}

// A value or a list of values as nlohmann::json has it.
Json to_json(const JsonNode& node) {
  Json json = node.value;
  if (json.is_array())
    for (const JsonNode& child : node.children) json.push_back(to_json(child));
  return json;
}

}  // namespace

const ConfigOrigin& ConfigOrigins::at(const std::string& key) const {
  const auto found = origins_.find(key);
  VCAS_CHECK(found != origins_.end(), "there is no setting " + key);
  return found->second;
}

int ConfigOrigins::count_given() const {
  return static_cast<int>(
      std::ranges::count_if(origins_, [](const auto& entry) { return entry.second.given(); }));
}

bool ConfigErrors::has_error(const std::string& key) const {
  return std::ranges::any_of(faulty_, [&](const std::string& faulty) {
    return key == faulty || key.starts_with(faulty + ".");
  });
}

void ConfigErrors::add(std::initializer_list<const char*> keys, const std::string& message) {
  VCAS_CHECK(keys.size() > 0, "an error is about at least one setting");
  ConfigOrigin origin;
  bool follows = false;  // from an error that is already reported
  std::string first;
  for (const char* name : keys) {
    const std::string key = section_ + name;
    if (!origins_.has(key)) continue;
    if (first.empty()) first = key;
    if (!origin.given()) origin = origins_.at(key);
    follows = follows || has_error(key);
  }
  VCAS_CHECK(!first.empty(), std::string("there is no setting ") + *keys.begin());
  if (follows) return;
  const std::string place = origin.given() ? origin.where + ": " : "";
  add_entry(origin.source, origin.offset,
            [&] { return fmt::format("{}error: {} {}\n", place, first, message); });
  faulty_.insert(first);
}

void ConfigErrors::add_entry(std::size_t source, std::size_t offset,
                             const std::function<std::string()>& text) {
  if (entries_.size() < kShownErrors)
    entries_.push_back({source, offset, text()});
  else
    ++more_;
}

void ConfigErrors::throw_if_any() const {
  if (entries_.empty()) return;
  std::vector<Entry> sorted = entries_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.source, a.offset) < std::pair(b.source, b.offset);
  });
  std::string text;
  for (const Entry& entry : sorted) text += entry.text;
  std::ranges::replace(text, '\0', ' ');  // the message would end there
  const std::string more = more_ > 0 ? fmt::format(" and {} more", more_) : "";
  throw Error(ExitCode::kBadConfig,
              fmt::format("{}{} error{}{}; nothing was run", text, sorted.size(),
                          sorted.size() == 1 ? "" : "s", more));
}

SourceText load_config_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  file.peek();  // a directory opens, but fails here
  if (!file.is_open() || file.bad())
    throw Error(ExitCode::kNoInput,
                fmt::format("cannot read the configuration {}: {}", path, std::strerror(errno)));
  SourceText source{path, {std::istreambuf_iterator<char>(file), {}}};
  if (source.text.compare(0, 3, "\xEF\xBB\xBF") == 0) source.text.erase(0, 3);  // byte order mark
  return source;
}

// Reads one source after the other into the settings.
class ConfigReader {
 public:
  // `kinds`: see read_settings. Null: only kinds are read.
  ConfigReader(Setting& root, const ConfigErrors* kinds, ConfigErrors& errors)
      : root_(root), kinds_(kinds), errors_(errors) {
    for (const Setting* setting : all_settings(root_)) {
      errors_.origins_.set(setting->key, {});
      if (setting->chooses_kind) chosen_[setting->key] = settings_to_json(*setting).dump();
    }
  }

  void read(const ConfigSources& sources) {
    saved_ = sources.saved;
    for (const SourceText& document : sources.documents) read_document(document);
    for (const EnvironmentSetting& setting : sources.environment) read_environment(setting);
    for (const std::string& assignment : sources.overrides) read_assignment(assignment, "--set");
    for (const std::string& assignment : sources.variant) read_assignment(assignment, "--variant");
  }

  // A configuration with a default outside its own range would not be read again.
  void check_defaults() {
    for (const Setting* setting : all_settings(root_)) {
      if (errors_.origins_.at(setting->key).given() || errors_.has_error(setting->key)) continue;
      begin_source({"the default of " + setting->key, settings_to_json(*setting).dump()}, "default",
                   "default");
      const JsonDocument document = parse_json(source_.text, /*ignore_comments=*/false);
      with_value(*setting, [&](auto* value) { read_setting(*setting, document.root, *value); });
    }
  }

  void validate() {
    // A document that broke off, or is of a newer form, lacks settings: what would be said about
    // those is not to be trusted.
    if (!unread_) validate(root_);
  }

 private:
  void read_document(const SourceText& source) {
    begin_source(source, {}, {});
    const JsonDocument document = parse_json(source.text, /*ignore_comments=*/true);
    if (document.error) {
      const std::size_t offset = document.error->offset;
      unread_ = true;
      add_error(offset, document.error->message, source.underline(offset, offset + 1));
      if (!document.root.value.is_object()) return;
    }
    if (!is_too_new(document.root)) return read_section(root_, document.root);
    unread_ = true;
  }

  // `spelling` is how the user wrote it, `where` and `label` as in ConfigOrigin.
  void read_override(std::string key, const std::string& value, const std::string& spelling,
                     const std::string& where, const std::string& label) {
    begin_source({spelling, value}, where, label);
    JsonDocument document = parse_json(value, /*ignore_comments=*/false);
    if (document.error) {
      document.root = {.end = value.size(), .value = value};
      try {
        document.root.value.dump();
      } catch (const Json::type_error&) {
        return add_error(0, "the value is not UTF-8");
      }
    }
    for (bool nested = true; nested;) {  // wraps the value into an object for each part of the key
      const std::size_t dot = key.rfind('.');
      nested = dot != std::string::npos;
      document.root.name = key.substr(nested ? dot + 1 : 0);
      key.resize(nested ? dot : 0);
      JsonNode parent{.value = Json::object()};
      parent.children.push_back(std::move(document.root));
      document.root = std::move(parent);
    }
    read_section(root_, document.root);
  }

  void read_assignment(const std::string& assignment, const std::string& label) {
    const std::size_t equals = assignment.find('=');
    std::string key = assignment.substr(0, equals);
    for (std::size_t i = 0; i < key.size(); ++i) {
      const bool own = i > 0 && key[i - 1] == 'x' && (i == 1 || key[i - 2] == '.');  // "x-note"
      if (key[i] == '-' && !own) key[i] = '_';
    }
    if (equals == std::string::npos) {
      begin_source({"--set " + assignment, {}}, {}, label);
      return add_error(0, "expected key=value");
    }
    read_override(key, assignment.substr(equals + 1), "--set " + assignment, "--set " + key, label);
  }

  void read_environment(const EnvironmentSetting& setting) {
    const char* value = std::getenv(setting.variable.c_str());
    if (value == nullptr || *value == '\0') return;
    read_override(setting.key, value, setting.variable + "=" + value, setting.variable,
                  setting.variable);
  }

  void begin_source(SourceText source, const std::string& where, const std::string& label) {
    ++source_count_;
    source_ = std::move(source);
    where_ = where;
    label_ = label;
  }

  bool is_document() const { return label_.empty(); }

  void add_error(std::size_t offset, const std::string& message,
                 const std::function<std::string()>& detail) {
    errors_.add_entry(source_count_, offset, [&] {
      const std::string place = is_document() ? source_.place(offset) : source_.name;
      return fmt::format("{}: error: {}\n{}", place, message, detail());
    });
  }

  void add_error(std::size_t offset, const std::string& message, const std::string& detail = {}) {
    add_error(offset, message, [&] { return detail; });
  }

  void add_value_error(const std::string& key, const JsonNode& node, const std::string& message,
                       const std::string& detail = {}) {
    errors_.faulty_.insert(key);
    add_error(node.begin, fmt::format("{} {}", key, message), detail);
  }

  std::string key_underline(const JsonNode& node) const {
    return is_document() ? source_.underline(node.key_begin, node.key_end) : "";
  }

  // The value as the user wrote it.
  std::string_view raw(const JsonNode& node) const {
    return std::string_view(source_.text).substr(node.begin, node.end - node.begin);
  }

  std::string shown(const JsonNode& node) const {
    if (node.value.is_object()) return "an object";
    if (node.value.is_array()) return "a list";
    return node.value.is_string() ? node.value.dump() : std::string(raw(node));
  }

  void read_section(Setting& section, const JsonNode& node) {
    if (!node.value.is_object()) {
      const std::string name = section.key.empty() ? "the configuration" : name_of(section);
      return add_value_error(name, node, fmt::format("must be an object, got {}", shown(node)));
    }
    std::map<std::string, const JsonNode*> seen;
    for (const JsonNode& member : node.children) {
      const auto [first, is_new] = seen.emplace(member.name, &member);
      if (!is_new)
        add_error(member.key_begin,
                  fmt::format("duplicate key \"{}\"{}", member.name, in_section(section)),
                  [&, earlier = first->second] {
                    return key_underline(member) + fmt::format("  it is already set in line {}\n",
                                                               source_.line(earlier->key_begin));
                  });
      else if (section.key.empty() && member.name == "$schema")
        read_schema_name(member);
      else if (section.key.empty() && member.name == kVersionKey)
        read_version(member);
      else if (!is_own_key(member.name))
        read_member(section, member);
    }
  }

  void read_schema_name(const JsonNode& node) {
    if (!node.value.is_string())
      add_value_error("$schema", node, fmt::format("must be a string, got {}", shown(node)));
  }

  // Reports it: the keys of such a document may mean other things.
  bool is_too_new(const JsonNode& root) {
    for (const JsonNode& member : root.children) {
      if (member.name != kVersionKey || !member.value.is_number_integer()) continue;
      if (member.value.get<double>() <= kConfigVersion) continue;
      add_error(member.begin,
                fmt::format("config_version {} is newer than {}, which this program "
                            "reads",
                            raw(member), kConfigVersion),
                "  hint: use the program that wrote it, or a newer one\n");
      return true;
    }
    return false;
  }

  void read_version(const JsonNode& node) {
    if (!node.value.is_number_integer() || node.value != kConfigVersion)
      add_value_error(kVersionKey, node,
                      fmt::format("must be {}, got {}", kConfigVersion, shown(node)));
  }

  void read_member(Setting& section, const JsonNode& node) {
    Setting* child = find_member(section, node.name);
    if (!child && section.key.empty() && !node.name.empty())
      for (Setting& now : section.children)
        if (now.former_section.name == node.name) return read_former(now, node);
    if (child && child->is_section()) return read_section(*child, node);
    if (!child || !errors_.origins_.has(child->key)) return read_foreign(section, node);
    if (!kinds_ && !child->chooses_kind) return;
    if (const ConfigOrigin& first = errors_.origins_.at(child->key); first.source == source_count_)
      return add_error(node.key_begin,
                       fmt::format("\"{}\"{} sets {}, which {} has set already", node.name,
                                   in_section(section), child->key, first.where),
                       [&] { return key_underline(node); });
    with_value(*child, [&](auto* value) { read_setting(*child, node, *value); });
    errors_.origins_.set(child->key, origin(node));
  }

  // A section by its former name and with its former switch.
  void read_former(Setting& section, JsonNode node) {
    const FormerSection& former = section.former_section;
    const auto chooser = std::ranges::find_if(section.children, &Setting::chooses_kind);
    VCAS_CHECK(chooser != section.children.end(), section.key + " chooses no kind");
    std::erase_if(node.children, [&](JsonNode& member) {
      if (member.name != former.flag) return false;
      if (!member.value.is_boolean()) {
        add_type_error("true or false", former.name + "." + former.flag, member, false);
        return true;
      }
      member.name = chooser->name;
      member.value = member.value.get<bool>() ? former.on : former.off;
      return false;
    });
    former_ = &section;
    read_section(section, node);
    former_ = nullptr;
  }

  // As the user calls it.
  std::string name_of(const Setting& section) const {
    return former_ == &section ? section.former_section.name : section.key;
  }
  std::string in_section(const Setting& section) const {
    return section.key.empty() ? "" : fmt::format(" in \"{}\"", name_of(section));
  }

  // Settings of kinds that are not chosen, and what chooses among these kinds.
  struct Foreign {
    std::vector<Setting*> settings;
    const Setting* type = nullptr;
  };

  static void find_foreign(Setting& section, const std::string& key, const Setting* type,
                           Foreign& found) {
    for (Setting& child : section.children) {
      if (type && child.key == key) {
        found.settings.push_back(&child);
        found.type = type;
      }
      if (key.starts_with(child.key + ".")) find_foreign(child, key, type, found);
    }
    const auto chooser = std::ranges::find_if(section.children, &Setting::chooses_kind);
    for (Setting& kind : section.other_kinds) find_foreign(kind, key, &*chooser, found);
  }

  // A setting of a kind that is not chosen. Runs save the settings of one kind; older ones saved
  // those of all.
  void read_foreign(Setting& section, const JsonNode& node) {
    Foreign foreign;
    const std::string prefix = section.key.empty() ? "" : section.key + ".";
    find_foreign(root_, prefix + node.name, nullptr, foreign);
    if (foreign.settings.empty()) return add_unknown_key(section, node);
    if (foreign.settings.front()->is_section())
      return read_section(*foreign.settings.front(), node);
    const Setting& type = *foreign.type;
    if (former_) {  // what the switch turned off kept its settings
      const Setting& setting = *foreign.settings.front();
      with_value(setting, [&](auto* value) { read_setting(setting, node, *value); });
      return;
    }
    const bool is_default = std::ranges::any_of(foreign.settings, [&](const Setting* setting) {
      return to_json(node) == settings_to_json(*setting);
    });
    if (!kinds_ || is_default || (saved_ && is_document()) || kinds_->has_error(type.key)) return;
    const ConfigOrigin& chosen = kinds_->origins().at(type.key);
    if (chosen.given() && source_count_ < chosen.source && label_ != chosen.label)
      return;  // another kind was chosen then
    std::vector<std::string> kinds;
    for (const Setting* setting : foreign.settings)
      kinds.push_back(fmt::format("\"{}\"", setting->kind));
    const std::string last = kinds.back();
    kinds.pop_back();
    add_error(node.key_begin,
              fmt::format("\"{}\"{} is a setting of {}{}{}, and {} is {}", node.name,
                          in_section(section), fmt::join(kinds, ", "), kinds.empty() ? "" : " and ",
                          last, type.key, chosen_.at(type.key)),
              [&] { return key_underline(node); });
  }

  Setting* find_member(Setting& section, const std::string& name) {
    for (Setting& child : section.children)
      if (child.name == name) return &child;
    for (Setting* setting : all_settings(root_))
      if (setting->former_key == section.key + "." + name) return setting;
    return nullptr;
  }

  ConfigOrigin origin(const JsonNode& node) const {
    if (!is_document()) return {where_, label_, source_count_, 0};
    return {source_.place(node.begin), fmt::format("{}:{}", source_.name, source_.line(node.begin)),
            source_count_, node.begin};
  }

  // Asks the section itself first, then the whole config for the same name in another section.
  void add_unknown_key(const Setting& section, const JsonNode& node) {
    std::vector<std::string> names;
    for (const Setting& child : section.children) names.push_back(child.name);
    std::string nearest = nearest_name(node.name, names);
    std::string nearest_key = section.key.empty() ? nearest : section.key + "." + nearest;
    if (nearest.empty()) {
      nearest_key.clear();
      for (const Setting* setting : all_settings(root_))
        if (setting->name == node.name) nearest = nearest_key = setting->key;
    }
    errors_.faulty_.insert(nearest_key);  // whoever misses its value knows why
    const bool is_at_top = !nearest.empty() && nearest_key == node.name;
    add_error(node.key_begin, fmt::format("unknown key \"{}\"{}", node.name, in_section(section)),
              [&] {
                return key_underline(node) +
                       (is_at_top ? fmt::format("  \"{}\" stands in no section\n", nearest_key)
                                  : did_you_mean(is_document() ? nearest : nearest_key));
              });
  }

  void read_setting(const Setting& setting, const JsonNode& node, Duration& value) {
    const bool whole = raw(node).find_first_of(".eE") == std::string_view::npos;
    Duration duration = value;
    if (node.value.is_number() && (whole || duration.plain() == Duration::Unit::kEpochs))
      duration.set_plain(node.value.get<double>());
    else if (!node.value.is_string() || !duration.set_text(node.value.get<std::string>()))
      return add_type_error(type_phrase(setting), setting.key, node, true);
    Range range = setting.range;
    range.narrow(at_most(Duration::kMost));
    if (check_range(range, setting.key, node, duration.amount())) value = duration;
  }

  template <class T>
  void read_setting(const Setting& setting, const JsonNode& node, T& value) {
    using Element = typename ValueType<T>::Element;
    if constexpr (ValueType<T>::kList) {
      if (!node.value.is_array()) return add_type_error(type_phrase<T>(), setting.key, node, false);
      T list;
      bool complete = true;
      for (std::size_t i = 0; i < node.children.size(); ++i) {
        const std::optional<Element> element = read_element<Element, Element>(
            setting, fmt::format("{}[{}]", setting.key, i), node.children[i]);
        complete = complete && element.has_value();
        if (complete) list.push_back(*element);
      }
      if (complete)
        value = std::move(list);
      else
        errors_.faulty_.insert(setting.key);
    } else {
      if constexpr (ValueType<T>::kOptional) {
        if (node.value.is_null()) return value.reset();
      }
      if constexpr (std::is_same_v<Element, std::string>) {
        if (!is_document() && !node.value.is_string()) {
          JsonNode text = node;
          text.value = std::string(raw(node));
          return read_setting(setting, text, value);
        }
      }
      std::optional<Element> element = read_element<Element, T>(setting, setting.key, node);
      if (element) value = std::move(*element);
    }
  }

  // A number that is not one of `whole` numbers may have been meant as one.
  void add_type_error(const std::string& phrase, const std::string& key, const JsonNode& node,
                      bool whole) {
    std::string detail;
    if (whole && node.value.is_number_float()) {
      const double number = node.value.get<double>();
      if (std::trunc(number) == number && std::abs(number) < 1e15)
        detail = did_you_mean(fmt::format("{:.0f}", number));
    }
    add_value_error(key, node, fmt::format("must be {}, got {}", phrase, shown(node)), detail);
  }

  // `Whole` is the type that a message names.
  template <class Element, class Whole>
  std::optional<Element> read_element(const Setting& setting, const std::string& key,
                                      const JsonNode& node) {
    const Json& json = node.value;
    if constexpr (std::is_same_v<Element, bool>) {
      if (json.is_boolean()) return json.get<bool>();
    } else if constexpr (std::is_same_v<Element, std::string>) {
      if (json.is_string()) return read_choice(setting, key, node);
    } else if constexpr (kIsInteger<Element>) {
      // Whole numbers beyond 64 bits arrive as double.
      if (json.is_number() && raw(node).find_first_of(".eE") == std::string_view::npos)
        return read_integer<Element>(setting, key, node);
    } else {
      if (json.is_number()) return check_range(setting.range, key, node, json.get<double>());
    }
    add_type_error(type_phrase<Whole>(), key, node, kIsInteger<Element>);
    return std::nullopt;
  }

  template <class Number>
  std::optional<Number> check_range(const Range& range, const std::string& key,
                                    const JsonNode& node, Number number) {
    const std::string violation = range.violation(static_cast<double>(number));
    if (violation.empty()) return number;
    add_value_error(key, node, fmt::format("{}, got {}", violation, shown(node)));
    return std::nullopt;
  }

  template <class Integer>
  std::optional<Integer> read_integer(const Setting& setting, const std::string& key,
                                      const JsonNode& node) {
    using Limits = std::numeric_limits<Integer>;
    const Json& json = node.value;
    if (json_holds<Integer>(json))
      return check_range(setting.range, key, node, json.get<Integer>());
    const bool negative = raw(node).front() == '-';
    add_value_error(key, node,
                    fmt::format("must be {} {}, got {}", negative ? "at least" : "at most",
                                negative ? Limits::min() : Limits::max(), shown(node)));
    return std::nullopt;
  }

  std::optional<std::string> read_choice(const Setting& setting, const std::string& key,
                                         const JsonNode& node) {
    const std::vector<std::string>& choices = setting.range.choices;
    std::string text = node.value.get<std::string>();
    if (text.find('\0') != std::string::npos) {  // paths and messages would end there
      add_value_error(key, node, fmt::format("must have no \\u0000, got {}", shown(node)));
      return std::nullopt;
    }
    if (choices.empty() || std::ranges::count(choices, text) > 0) return text;
    const std::string nearest = nearest_name(text, choices);
    add_value_error(key, node,
                    fmt::format("{} is not one of: {}", shown(node), fmt::join(choices, ", ")),
                    nearest.empty() && setting.chooses_kind
                        ? "  one of your own is known to the program that links it\n"
                        : did_you_mean(nearest));
    return std::nullopt;
  }

  void validate(const Setting& section) {
    for (const Setting& child : section.children) validate(child);
    errors_.section_ = section.key.empty() ? "" : section.key + ".";
    for (const auto& check : section.checks) check(errors_);
    errors_.section_.clear();
  }

  Setting& root_;
  const ConfigErrors* kinds_;
  ConfigErrors& errors_;
  std::map<std::string, std::string> chosen_;  // kinds as the first reading left them, as JSON
  bool saved_ = false, unread_ = false;
  const Setting* former_ = nullptr;  // the section that is read by its former name
  std::size_t source_count_ = 0;
  SourceText source_;          // the current source; its name is what errors show
  std::string where_, label_;  // of an override; empty for a document
};

ConfigErrors read_kinds(Setting& root, const ConfigSources& sources) {
  ConfigErrors errors;
  ConfigReader(root, nullptr, errors).read(sources);
  return errors;
}

void read_settings(Setting& root, const ConfigSources& sources, const ConfigErrors& kinds,
                   ConfigErrors& errors) {
  ConfigReader reader(root, &kinds, errors);
  reader.read(sources);
  reader.check_defaults();
  reader.validate();
}

}  // namespace vcas
