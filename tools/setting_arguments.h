// Settings on the command line, in every form that it takes.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

namespace vcas {

// Settings become "--set", "section.name=value", where `command` has --set: section.name=value,
// --section.name value, --section.name=value, and short forms such as --epochs 3. Their order is
// kept, for the later one wins. The command's own options and their values stay as they are.
// An option with nothing behind its = has an empty value.
// Files *.json stay too, and other paths that begin with no known key, and what follows "--".
// Throws kUsage for a setting without a value.
std::vector<std::string> with_settings_as_set(const CLI::App& command,
                                              const std::vector<std::string>& arguments);

// "--epochs (train.epochs), ...", for --help.
std::string short_forms();

// What `option` ("--learning-rate") may have been meant as; empty where nothing is near.
std::string nearest_option(const CLI::App& command, const std::string& option);

}  // namespace vcas
