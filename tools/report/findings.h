// What the figures of a run say to its user.
#pragma once

#include <string>
#include <vector>

#include "tools/report/run_record.h"

namespace vcas {

struct Finding {
  std::string what, advice;
};

// Most urgent first. `twin` may be null.
std::vector<Finding> findings(const RunRecord& run, const RunRecord* twin);

}  // namespace vcas
