// metrics.jsonl: one JSON object a line, in the order of the steps (docs/metrics.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/files.h"
#include "core/progress.h"

namespace vcas {

enum class MetricEvent { kStart, kTrain, kEval, kVariance, kCheckpoint, kWarning, kEnd };

class MetricsLog {
 public:
  // Goes on with the file if there is one, without the last line if that was torn by a crash.
  // `now`: seconds of a clock that never goes back.
  explicit MetricsLog(std::filesystem::path path, std::function<double()> now = monotonic_seconds);

  // A run resumed at `step` writes what came later again: the later steps, evaluations after that
  // of the step `evaluated`, and the end.
  void truncate_after(std::int64_t step, std::int64_t evaluated);

  // Adds {"event": .., "step": .., "time": .., fields...}; the time is in seconds since the log was
  // opened. The line is with the system when this returns. NaN and infinity become null, for JSON
  // has neither.
  void write(MetricEvent event, std::int64_t step, const nlohmann::ordered_json& fields = {});

 private:
  void truncate(const std::function<bool(const nlohmann::json&)>& is_late);

  std::filesystem::path path_;
  std::function<double()> now_;
  double opened_;
  FileDescriptor file_;
};

// Gives each line of a log to `use`, but for a torn last line. Returns whether there was one.
// Throws Error(kBadData) for any other bad line.
bool read_metrics(const std::filesystem::path& path,
                  const std::function<void(nlohmann::json)>& use);
// All lines.
std::vector<nlohmann::json> read_metrics(const std::filesystem::path& path);

}  // namespace vcas
