// `vcas plan`: what a run will take, before it is trained.
#pragma once

#include <vector>

#include "tools/run_config.h"

namespace vcas {

struct PlanRequest {
  std::vector<double> ratios = {0.5};  // keep ratios, of items and of rows, to tell the savings of
  bool timing = true;                  // measures a few steps
  bool json = false;
};

// Prints to stdout: parameters, memory, FLOPs, steps, disk, time and savings.
// Throws what the run would throw. kOutOfMemory, after the plan, if the run does not fit.
void plan_run(const LoadedConfig& loaded, const PlanRequest& request);

}  // namespace vcas
