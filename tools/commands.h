// The small sub-commands.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace vcas {

// "vcas 0.1.0  C++20 ...": what is built in.
std::string version_line();

void inspect_file(const std::filesystem::path& file, bool json);
void print_schema();
// Throws kUsage for an unknown name; an empty one lists the templates.
void print_template(const std::string& name);
void print_settings_help();
void print_doctor();

}  // namespace vcas
