// `vcas report`: what runs have measured, as one page and as files for other programs.
#pragma once

#include <filesystem>
#include <vector>

namespace vcas {

struct ReportRequest {
  std::vector<std::filesystem::path> runs;  // folders of runs or of comparisons
  std::filesystem::path page;               // empty: report.html in the first of them
  // Not written if empty.
  std::filesystem::path svg_folder, csv, tensorboard_folder;
};

// Says on standard error what it used and what it left out.
// Throws:
//   kNoInput, kBadData       a folder is missing, or no run can be read
//   kUsage                   more runs than there are colours
//   kCannotCreate, kIoError  an output cannot be written
void report(const ReportRequest& request);

}  // namespace vcas
