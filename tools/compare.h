// `vcas compare`: two runs in one process, stepped in turns, so that what else the machine does
// slows both alike.
#pragma once

#include <filesystem>
#include <string>

#include "tools/run_config.h"

namespace vcas {

struct CompareRequest {
  LoadedConfig first, second;  // savings are those of the second over the first
  std::string first_name, second_name;
  std::filesystem::path folder;
  bool overwrite = false;
  bool json = false;
};

// The exact twin of a configuration against itself, in the configuration's own folder.
CompareRequest compare_with_exact(const LoadedConfig& loaded);

// Prints the table, or JSON, to stdout. Metrics of both go to FOLDER/<name>/metrics.jsonl.
void compare(const CompareRequest& request);

}  // namespace vcas
