// What the figures of a run say to its user.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/report/run_record.h"

namespace vcas {

struct Finding {
  std::string what, advice;
};

// What the ratios of an event "variance" say. Empty: they are not near 1, or not all known.
std::optional<Finding> ratios_near_one(const nlohmann::json& ratios);
// What shares saved say. Empty: the conversion of FLOPs to seconds is not poor, or not known.
std::optional<Finding> poor_conversion(double flops, double time);

// Most urgent first. `twin` may be null.
std::vector<Finding> findings(const RunRecord& run, const RunRecord* twin);

}  // namespace vcas
