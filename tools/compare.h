// `vcas compare`: two runs in one process, stepped in turns, so that what else the machine does
// slows both alike.
#pragma once

#include <filesystem>
#include <string>

#include "tools/training_run.h"

namespace vcas {

struct CompareRequest {
  TrainRequest first, second;  // savings are those of the second over the first
  std::string first_name, second_name;
  std::filesystem::path folder;  // of the folders of both runs, which have their names
  FolderUse use = FolderUse::kNext;
  bool json = false;
};

// The exact twin of a configuration against itself, in a folder beside the configuration's own.
CompareRequest compare_with_exact(const LoadedConfig& loaded);

// The comparison that is in `folder`, with the settings of both changed. Throws kNoInput.
CompareRequest saved_comparison(const std::filesystem::path& folder,
                                const std::vector<std::string>& overrides);

// Prints the table, or JSON, to stdout; JSON goes to FOLDER/compare.json too. Throws kStopped after
// both have saved when a signal asked for it.
void compare(CompareRequest request);

}  // namespace vcas
