// `vcas train`: the loop round the trainer, with everything a user sees of it.
#pragma once

#include <filesystem>
#include <optional>

#include "tools/run_config.h"
#include "tools/run_folder.h"

namespace vcas {

struct TrainRequest {
  LoadedConfig loaded;
  bool resume = false;
  ResumePoint from = {};  // where `resume`; check_same_config says whether its run goes on
  bool fork = false;      // from there, but as a new run whose settings may differ
  bool timing = false;
  // Steps that a profiler records, counted from 1; 0: none.
  std::int64_t profile_first = 0, profile_last = 0;
};

// Throws kStopped after a save when a signal asked for it, kDiverged with a note in the folder,
// kUsage for steps to profile that the run does not make, kUnavailable without a profiler for them.
void train(const TrainRequest& request);

// Everything a run does, once, in a folder beside the run's own that is removed again.
void dry_run(const LoadedConfig& loaded);

// One line about a configuration that is fit to run. Throws what the run would throw.
std::string validate_run(const LoadedConfig& loaded, FolderUse use);

}  // namespace vcas
