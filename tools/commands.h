// The small sub-commands.
#pragma once

#include <filesystem>
#include <string>

namespace vcas {

void inspect_file(const std::filesystem::path& file, bool json);
void print_schema();
// A line for each template: what it trains and what must be there first.
void print_template_names();
// Throws kUsage for an unknown name.
void print_template(const std::string& name);
void print_settings_help();
void print_doctor();

}  // namespace vcas
