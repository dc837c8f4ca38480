// What vcas-train does: a run, a trial of it, a check of its configuration.
#pragma once

#include <string>

#include "tools/train_request.h"

namespace vcas {

// Throws kStopped after a save when a signal asked for it, kDiverged with a note in the folder,
// kUsage for steps to profile that the run does not make, kUnavailable without a profiler for them.
void train(const TrainRequest& request);

// Everything a run does, once, in a folder beside the run's own that is removed again.
void dry_run(const LoadedConfig& loaded);

// One line about a configuration that is fit to run. Throws what the run would throw.
std::string validate_run(const TrainRequest& request);

}  // namespace vcas
