// The folder of a run: one run at a time, nothing overwritten by accident.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/metrics.h"
#include "tools/run_config.h"

namespace vcas {

enum class FolderUse { kNew, kOverwrite, kResume };

// Creates it with its parents. Throws kCannotCreate with this hint.
void make_folder(const std::filesystem::path& folder, const std::string& hint);

// Throws kCannotCreate when `folder` cannot take a run; creates nothing.
void check_run_folder(const std::filesystem::path& folder, FolderUse use);

class RunFolder {
 public:
  RunFolder(const std::filesystem::path& folder, FolderUse use);

  const std::filesystem::path& path() const { return path_; }
  MetricsLog& metrics() { return metrics_; }
  void log(std::string_view line);  // to log.txt

 private:
  std::filesystem::path path_;
  FolderLock lock_;
  MetricsLog metrics_;
  std::ofstream log_;
};

struct ResumePoint {
  std::filesystem::path run, checkpoint;
  std::vector<std::string> ignored;  // incomplete checkpoints, and why
};

// `folder` is a checkpoint, or a run whose newest complete one is meant, to go on with it or else
// to use its model. Throws kNoInput.
ResumePoint find_resume_point(const std::filesystem::path& folder, bool to_resume);

// Throws kBadConfig unless a run with `config` goes on exactly as the checkpoint's would have.
void check_same_config(const std::filesystem::path& checkpoint, const RunConfig& config);

}  // namespace vcas
