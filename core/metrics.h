// metrics.jsonl: one JSON object a line, in the order of the steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/files.h"

namespace vcas {

enum class MetricEvent { kStart, kTrain, kEval, kVariance, kCheckpoint, kWarning, kEnd };

class MetricsLog {
 public:
  // Goes on with the file if there is one, without the last line if that was torn by a crash.
  explicit MetricsLog(std::filesystem::path path);

  // A run resumed at `step` writes the later steps again.
  void truncate_after(std::int64_t step);

  // Adds {"event": .., "step": .., fields...}; the line is with the system when this returns. NaN
  // and infinity become null, for JSON has neither.
  void write(MetricEvent event, std::int64_t step, const nlohmann::ordered_json& fields = {});

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
};

// All lines of a log; a torn last line is left out, any other bad line is kBadData.
std::vector<nlohmann::json> read_metrics(const std::filesystem::path& path);

}  // namespace vcas
