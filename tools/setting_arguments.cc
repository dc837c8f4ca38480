#include "tools/setting_arguments.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/nearest_name.h"
#include "tools/run_config.h"
#include "tools/run_folder.h"

namespace vcas {
namespace {

struct ShortForm {
  const char* option;
  const char* key;
};

// Settings without a section, such as device and seed, need none.
constexpr ShortForm kShortForms[] = {{"--epochs", "train.epochs"},
                                     {"--steps", "train.steps"},
                                     {"--batch-size", "train.batch_size"},
                                     {"--lr", "schedule.learning_rate"},
                                     {"--folder", "run.folder"}};

bool takes_settings(const CLI::App& command) { return command.get_option_no_throw("--set"); }

std::vector<std::string> keys() {
  RunConfig config;
  return setting_keys(describe(config));
}

std::string option_of(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

// Empty where `option` is no form of a setting.
std::string key_of(const std::string& option) {
  for (const ShortForm& form : kShortForms)
    if (option == form.option) return form.key;
  RunConfig config;
  for (const std::string& key : keys())
    if (option == option_of(key)) return key;
  for (const std::string& key : former_keys(describe(config)))
    if (option == option_of(key)) return key;
  return {};
}

}  // namespace

std::vector<std::string> with_settings_as_set(const CLI::App& command,
                                              const std::vector<std::string>& arguments) {
  const bool has_settings = takes_settings(command);
  std::vector<std::string> result;
  const auto set = [&](const std::string& key, const std::string& value) {
    result.insert(result.end(), {"--set", fmt::format("{}={}", key, value)});
  };
  for (auto argument = arguments.begin(); argument != arguments.end(); ++argument) {
    if (*argument == "--") {
      result.insert(result.end(), argument, arguments.end());
      break;
    }
    const std::size_t equals = argument->find('=');
    const bool has_next = argument + 1 != arguments.end();
    if (!argument->starts_with("-")) {
      const bool is_known = std::ranges::count(keys(), argument->substr(0, equals)) > 0;
      const bool is_path = is_there(*argument) && (!is_known || argument->ends_with(".json"));
      if (has_settings && equals != std::string::npos && !is_path) result.push_back("--set");
      result.push_back(*argument);
      continue;
    }
    const std::string name = argument->substr(0, equals);
    const CLI::Option* own = command.get_option_no_throw(name);
    const std::string key = own || !has_settings ? "" : key_of(name);
    if (own && *argument == name + "=" && own->get_items_expected_max() > 0) {
      result.insert(result.end(), {name, ""});  // CLI11 would take the next word
    } else if (key.empty()) {
      result.push_back(*argument);
      const bool takes_next = own && has_next && equals == std::string::npos &&
                              (own->get_items_expected_min() > 0 ||
                               (own->get_items_expected_max() > 0 && is_there(*(argument + 1))));
      if (takes_next) result.push_back(*++argument);
    } else if (equals != std::string::npos) {
      set(key, argument->substr(equals + 1));
    } else if (has_next && !(argument + 1)->starts_with("--")) {
      set(key, *++argument);
    } else {
      throw Error(ExitCode::kUsage, fmt::format("{} needs a value", name),
                  fmt::format("{} VALUE sets {}", name, key));
    }
  }
  return result;
}

std::string short_forms() {
  std::vector<std::string> forms;
  for (const auto& [option, key] : kShortForms)
    forms.push_back(fmt::format("{} ({})", option, key));
  return fmt::format("{}", fmt::join(forms, ", "));
}

std::string nearest_option(const CLI::App& command, const std::string& option) {
  std::vector<std::string> names;
  for (const CLI::Option* own : command.get_options())
    for (const std::string& name : own->get_lnames()) names.push_back("--" + name);
  if (takes_settings(command)) {
    for (const ShortForm& form : kShortForms) names.emplace_back(form.option);
    for (const std::string& key : keys()) {
      names.push_back(option_of(key));
      // "--learning-rate" without its section
      if (names.back().ends_with("." + option.substr(std::min<std::size_t>(2, option.size()))))
        return names.back();
    }
  }
  return nearest_name(option, names);
}

}  // namespace vcas
