// The plots of a report.
#pragma once

#include <string>
#include <vector>

#include "tools/report/plot.h"
#include "tools/report/run_record.h"

namespace vcas {

struct PlotSection {
  std::string title, text;
  std::vector<Plot> plots = {};
  std::vector<std::string> missing = {};  // plots that were left out, and why
};

// Runs have the colours of their places. Sections without plots and words are left out.
std::vector<PlotSection> plot_sections(const std::vector<RunRecord>& runs);

// Parts of the seconds of a run, in the order of the plot; what no phase names is "other".
struct PhaseSeconds {
  std::string label;
  double seconds;  // NaN if not known
};
std::vector<PhaseSeconds> seconds_by_phase(const RunRecord& run);

}  // namespace vcas
