// Metrics of runs for other programs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/report/run_record.h"

namespace vcas {

inline constexpr const char* kCsvBegin = "run,step,time";

// A line of names, then one for each event `train`: RFC 4180, with \n. Unknown values are empty.
std::string metrics_csv(const std::vector<RunRecord>& runs);

// Events of TensorBoard: records of TFRecord, each a message Event of tensorflow/core/util/event.
// Scalars: losses, measures, learning rate, norms, savings and mean ratios.
std::string tensorboard_events(const RunRecord& run);
// The name that TensorBoard looks for. It is the same for the same run.
std::string tensorboard_name(const RunRecord& run);
bool is_tensorboard_name(std::string_view name);  // of any run

}  // namespace vcas
