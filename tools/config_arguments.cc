#include "tools/config_arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "tools/pretrained.h"
#include "tools/setting_arguments.h"

namespace vcas {
namespace {

// An unknown device is best explained where it was set.
void check_device(const LoadedConfig& loaded) {
  try {
    device_name(loaded.config);
  } catch (const Error& error) {
    const ConfigOrigin& origin = loaded.origins.at("device");
    if (!origin.given()) throw;
    throw Error(error.code(),
                fmt::format("{}; device=\"{}\" was set in {}", error.what(), loaded.config.device,
                            origin.where),
                error.hint());
  }
}

}  // namespace

LoadedConfig load_for_device(const SourceText& text, const std::vector<std::string>& overrides,
                             const std::vector<std::string>& variant) {
  LoadedConfig loaded = load_config(text, overrides, /*saved=*/false, variant);
  check_device(loaded);
  return loaded;
}

void move_config(std::string& resume, std::vector<std::string>& files) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(resume) && (resume.ends_with(".json") || fs::exists(resume)))
    files.push_back(std::exchange(resume, {}));
}

void SettingArguments::add_set() {
  command
      .add_option("--set", set,
                  "Change one setting: section.name=value; also without --set, or as "
                  "--section.name value")
      ->allow_extra_args(false)
      ->take_all();
  command.footer("Short forms of settings, where they are no options above: " + short_forms() +
                 ". vcas settings lists all settings.");
}

ConfigArguments::ConfigArguments(CLI::App* added) : SettingArguments(added) {
  command.add_option("-c,--config", config, "Configuration, a JSON file");
  command.add_option("file", files, "Configuration, a JSON file, as by --config");
  add_set();
}

void ConfigArguments::take_config() {
  for (const std::string& text : files) {
    if (!config.empty() && (text == "origins" || text == "minimal"))
      fail_usage(fmt::format("\"{}\" is not expected here", text),
                 fmt::format("--print-config={}, with a \"=\"", text));
    if (!config.empty())
      fail_usage(
          fmt::format("\"{}\" is not expected here", text),
          fmt::format("the configuration is {}; settings are given as section.name=value", config));
    config = text;
  }
}

LoadedConfig ConfigArguments::load() const {
  if (config.empty())
    fail_usage("no configuration",
               "give one as in vcas-train FILE.json; vcas init lists some to start from");
  return load_for_device(load_config_text(config), set);
}

LoadedConfig ConfigArguments::load_whole() {
  take_config();
  LoadedConfig loaded = load();
  use_pretrained_settings(loaded);
  return loaded;
}

}  // namespace vcas
