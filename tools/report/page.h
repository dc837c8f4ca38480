// The page of a report: HTML that needs no other file.
#pragma once

#include <string>
#include <vector>

#include "tools/report/run_plots.h"
#include "tools/report/run_record.h"

namespace vcas {

inline constexpr const char* kPageBegin = "<!DOCTYPE html>";

std::string report_page(const std::vector<RunRecord>& runs,
                        const std::vector<PlotSection>& sections,
                        const std::vector<std::string>& left_out);

}  // namespace vcas
