// What vcas-train does: a run, a trial of it, a check of its configuration.
#pragma once

#include <string>

#include "tools/train_request.h"

namespace vcas {

// Throws kStopped after a save when a signal asked for it, and kDiverged with a note in the folder.
// kUsage: steps to profile that the run does not make. kUnavailable: no profiler for them.
void train(const TrainRequest& request);

// Does everything that a run does, once. Its folder is beside the run's own and is removed again.
void dry_run(const LoadedConfig& loaded);

// One line about a configuration that is fit to run. Throws what the run would throw.
std::string validate_run(const TrainRequest& request);

}  // namespace vcas
