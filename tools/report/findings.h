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

// Of the ratios of an event "variance". Empty: they are not near 1, or not all are known.
std::optional<Finding> ratios_near_one(const nlohmann::json& ratios);
// Of shares saved. Empty: the conversion of FLOPs to seconds is not poor, or not known (NaN).
std::optional<Finding> poor_conversion(double flops, double time);

// Most urgent first. `twin` may be null.
std::vector<Finding> findings(const RunRecord& run, const RunRecord* twin);

}  // namespace vcas
