// The strict configuration reader. A struct of settings names each of them once:
//
//   struct TrainConfig {
//     double learning_rate = 1e-3;
//     void fields(Setting& v) {
//       v.field("learning_rate", learning_rate, "Peak learning rate.", above(0.0));
//     }
//     void validate(ConfigErrors& errors) const;  // optional: what one range cannot say
//   };
//
// Reading, printing, help, ranges and the JSON schema follow from that. Later sources win:
// defaults, documents, environment, overrides. Every error of all sources is reported at once.
#pragma once

#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/json_text.h"
#include "core/setting.h"

namespace vcas {

// Where the value of a setting came from.
struct ConfigOrigin {
  std::string where = "default";  // "vit.json:12:14", "--set model.heads", "VCAS_DEVICE"
  std::string label = "default";  // "vit.json:12", "--set", "VCAS_DEVICE"
  // Orders errors; the default comes after all sources.
  std::size_t source = std::numeric_limits<std::size_t>::max(), offset = 0;

  bool given() const { return source != std::numeric_limits<std::size_t>::max(); }
};

// Holds every setting of the config that was read. Asking for another key is a bug.
class ConfigOrigins {
 public:
  const ConfigOrigin& at(const std::string& key) const;
  const std::string& where(const std::string& key) const { return at(key).where; }
  bool has(const std::string& key) const { return origins_.contains(key); }
  int count_given() const;
  int count_defaults() const { return static_cast<int>(origins_.size()) - count_given(); }

  void set(const std::string& key, ConfigOrigin origin) { origins_[key] = std::move(origin); }

 private:
  std::map<std::string, ConfigOrigin> origins_;
};

// Collects errors, of the reader and of later checks, to report them all at once.
class ConfigErrors {
 public:
  // "vit.json:12:14: error: <first key> <message>". `keys` are all settings involved.
  // The error is placed at the first one that was given.
  // It is dropped if one of them already has an error.
  // Keys that the chosen kinds lack do not count. Inside validate() keys are relative to the
  // section.
  void add(std::initializer_list<const char*> keys, const std::string& message);

  bool empty() const { return entries_.empty(); }
  const ConfigOrigins& origins() const { return origins_; }
  // Whether a source has the setting, named as in add().
  bool given(const std::string& key) const {
    return origins_.has(section_ + key) && origins_.at(section_ + key).given();
  }

  // Throws Error(kBadConfig) with the full text to print, "error:" included, sorted by place.
  void throw_if_any() const;

 private:
  friend class ConfigReader;
  struct Entry {
    std::size_t source, offset;
    std::string text;
  };
  // The text of an error that is not shown is not made: places in a long source take long.
  void add_entry(std::size_t source, std::size_t offset, const std::function<std::string()>& text);
  bool has_error(const std::string& key) const;  // of the setting or of a section around it

  std::vector<Entry> entries_;
  std::size_t more_ = 0;          // errors that are not shown
  std::set<std::string> faulty_;  // keys that have an error
  std::string section_;           // "model." while the section's validate() runs
  ConfigOrigins origins_;
};

// Reads a config file. Throws Error(kNoInput).
SourceText load_config_text(const std::string& path);

struct EnvironmentSetting {
  std::string variable, key;  // {"VCAS_DEVICE", "device"}; unset or empty: no override
};

// The form of configurations that this program reads.
// A document has it as "config_version" at its top. If absent it is 1.
constexpr int kConfigVersion = 1;

struct ConfigSources {
  // A run has saved the documents: older programs wrote the settings of all kinds of a Part.
  bool saved = false;
  // JSON with comments. A top-level "$schema" is ignored, and so are keys that begin with "x-".
  std::vector<SourceText> documents = {};
  std::vector<EnvironmentSetting> environment = {};
  // "train.learning_rate=3e-5". The value is JSON if it parses, else a string. For a string setting
  // it is always a string. '-' may stand for '_' in the key.
  std::vector<std::string> overrides = {};
  std::vector<std::string> variant = {};  // overrides of these
};

// "train.learning_rate", ...: all settings, also of kinds that are not chosen.
std::vector<std::string> setting_keys(const Setting& root);
// What they were called in older configurations.
std::vector<std::string> former_keys(const Setting& root);

// Sets the settings that choose kinds, and no others. Returns where they come from, and what is
// wrong with them.
ConfigErrors read_kinds(Setting& root, const ConfigSources& sources);
// `kinds`: from read_kinds. A setting of another kind is an error if its source, or an earlier one,
// chose the kind. With its default value it is none. All overrides count as one source there.
void read_settings(Setting& root, const ConfigSources& sources, const ConfigErrors& kinds,
                   ConfigErrors& errors);
nlohmann::ordered_json settings_schema(const Setting& root);
std::string settings_help(const Setting& root);

// A value with an error is left as it was. The caller may add errors before throw_if_any().
template <class Config>
void read_config(Config& config, const ConfigSources& sources, ConfigErrors& errors) {
  Setting unchosen = describe(config);
  const ConfigErrors kinds = read_kinds(unchosen, sources);
  Setting root = describe(config);
  read_settings(root, sources, kinds, errors);
}

template <class Config>
ConfigOrigins read_config(Config& config, const ConfigSources& sources) {
  ConfigErrors errors;
  read_config(config, sources, errors);
  errors.throw_if_any();
  return errors.origins();
}

// Configs are taken by value below: describe() needs an lvalue to hand out, and they are small.
template <class Config>
nlohmann::ordered_json to_json(Config config) {
  return settings_to_json(describe(config));
}

enum class PrintMode {
  kPlain,    // JSON that reads back to exactly this config
  kOrigins,  // with a comment at each setting; the reader accepts those too
  kMinimal,  // only what differs from the default
};

using SettingFilter = std::function<bool(const Setting&)>;

// The settings that are `shown`, each with its comment, if that is not empty.
std::string print_settings(const Setting& root, const SettingFilter& shown,
                           const std::function<std::string(const Setting&)>& comment);

std::string print_settings(const Setting& root, const Setting& defaults,
                           const ConfigOrigins& origins, PrintMode mode,
                           const SettingFilter& shown);

// `shown`: all settings, or fewer.
template <class Config>
std::string print_config(
    Config config, const ConfigOrigins& origins, PrintMode mode,
    const SettingFilter& shown = [](const Setting&) { return true; }) {
  Config defaults;
  return print_settings(describe(config), describe(defaults), origins, mode, shown);
}

// Draft-07. `config` holds the defaults. The schema accepts what the reader accepts, and more.
// It does not see duplicate keys, validate(), the limits of 64-bit integers and the chosen kind.
template <class Config>
nlohmann::ordered_json json_schema(Config config) {
  return settings_schema(describe(config));
}

// One paragraph for each setting: key, kinds that have it, help, type and range, default.
template <class Config>
std::string config_help(Config config) {
  return settings_help(describe(config));
}

struct ConfigChange {
  std::string key, before, after;  // values as JSON text
};

// The changes of the settings that both have.
std::vector<ConfigChange> settings_changes(const Setting& before, const Setting& after);

template <class Config>
std::vector<ConfigChange> config_changes(Config before, Config after) {
  return settings_changes(describe(before), describe(after));
}

}  // namespace vcas
