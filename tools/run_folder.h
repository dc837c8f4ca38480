// The folder of a run: one run at a time, nothing overwritten by accident.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/metrics.h"
#include "tools/run_config.h"

namespace vcas {

enum class FolderUse {
  kNew,        // it must be empty or absent
  kNext,       // the same of the first of FOLDER, FOLDER-2, FOLDER-3, ... behind the last there is
  kOverwrite,  // replaces the run in it, if any
  kAsItIs      // to go on with what is in it
};

// The folder of a new run.
FolderUse use_of(const RunOptions& options);

// Whether runs and comparisons write under this name in their folders, or remove what has it.
bool is_name_of_runs(const std::string& name);

// False too where permissions hide it, and for a name that is too long.
bool is_there(const std::filesystem::path& path);

// Creates it with its parents. Throws kCannotCreate with this hint.
void make_folder(const std::filesystem::path& folder, const std::string& hint);

// Creates nothing. Throws kCannotCreate when `folder` cannot take a run.
// Only what has the file `mark` is overwritten.
void check_run_folder(const std::filesystem::path& folder, FolderUse use,
                      const char* mark = "metrics.jsonl");
// Makes and removes a folder there: permissions do not tell whether a disk takes one.
// Throws kCannotCreate.
void try_run_folder(const std::filesystem::path& folder, FolderUse use);
// The same, and makes the folder. Returns its path: kNext decides it.
std::filesystem::path take_run_folder(const std::filesystem::path& folder, FolderUse use,
                                      const char* mark = "metrics.jsonl");

// Throws kCannotCreate when `folder` holds the checkpoint that a new run in it would start from.
// It may be the folder of its run, or above that. The paths may be written in any way.
void check_not_source(const std::filesystem::path& folder, const std::filesystem::path& checkpoint);

// Throws kCannotCreate where what `option` writes at `target` would change a run or a checkpoint.
// A file that is there is replaced only if it begins as what this option writes, with `begin`.
// For a folder `begin` is empty.
void check_output(const std::filesystem::path& target, const std::string& option,
                  std::string_view begin = {});

// Throws kCannotCreate where a run would remove what lies at `target`: in one of its checkpoints,
// or under another name that runs write.
void check_outside_runs(const std::filesystem::path& target, const std::string& option);

// The last of FOLDER, FOLDER-2, FOLDER-3, ... that is there and fits.
// If none fits: the last that is there. If none is there: FOLDER.
std::filesystem::path newest_run_folder(
    const std::filesystem::path& folder,
    const std::function<bool(const std::filesystem::path&)>& fits);
// The one behind the last that is there.
std::filesystem::path next_run_folder(const std::filesystem::path& folder);

// The run, or comparison, that a new one in its folder replaces.
// What an interrupted run left half-written goes first.
// It is set aside until the new one has saved a checkpoint.
// If the new one ends before, it comes back. If that was killed, at the next start.
class ReplacedRun {
 public:
  // The folder is locked.
  ReplacedRun(std::filesystem::path folder, FolderUse use);
  ReplacedRun(const ReplacedRun&) = delete;
  ReplacedRun& operator=(const ReplacedRun&) = delete;
  ~ReplacedRun();

  // Removes the old run if there is a checkpoint of the new one, else puts it back.
  void settle();

 private:
  std::filesystem::path folder_;
};

// Whether a run that a killed one was to replace waits in the folder.
bool is_being_replaced(const std::filesystem::path& folder);

// Settles what a killed run was replacing. Throws kCannotCreate where a run is still at it.
void settle_interrupted(const std::filesystem::path& folder);

class RunFolder {
 public:
  RunFolder(const std::filesystem::path& folder, FolderUse use);

  const std::filesystem::path& path() const { return path_; }
  MetricsLog& metrics() { return metrics_; }
  void write_log(std::string_view text);  // to log.txt, each line with the time of day
  // Throws kIoError where the folder was moved or removed since.
  void check_place() const;
  // The run has saved a checkpoint: what it replaces goes for good.
  void saved() { replaced_.settle(); }

 private:
  std::filesystem::path path_;
  FolderLock lock_;
  ReplacedRun replaced_;
  MetricsLog metrics_;
  std::ofstream log_;
  std::uint64_t lock_number_;
};

// What `vcas compare` writes beside the folders of its runs, and the names of its runs from there.
// A name is a folder: "exact", "exact/seed0". No names if it is not there.
inline constexpr const char* kComparisonFile = "compare.json";
inline constexpr const char* kComparisonTables[] = {"compare.csv", "compare.md"};
std::vector<std::string> runs_of_comparison(const std::filesystem::path& folder);
// Whether the run in this folder is one of a comparison.
bool is_of_comparison(const std::filesystem::path& run);

// The step of its newest crash-STEP.json; empty where there is none.
// Throws kNoInput for a folder that cannot be read.
std::optional<std::int64_t> newest_crash(const std::filesystem::path& run);

struct ResumePoint {
  std::filesystem::path run, checkpoint;
  std::vector<std::string> ignored = {};  // incomplete checkpoints, and why
  bool is_newest = false;                 // a run was named, and this is its newest one
};

// `folder` is a checkpoint, or a run: then its newest complete one is meant.
// `to_resume`: to go on with it, else to use its model. Throws kNoInput.
ResumePoint find_resume_point(const std::filesystem::path& folder, bool to_resume);

// Whether a run or checkpoint was made with these settings; where it is kept does not count.
bool has_same_settings(const std::filesystem::path& saved, const RunConfig& config);

// The same of a run, by its newest checkpoint where it has saved. A resume may have had others.
bool is_run_with(const std::filesystem::path& run, const RunConfig& config);

// Throws kBadConfig unless a run with `config` goes on exactly as the checkpoint's would have.
// `otherwise`: what the hint says of how to train with these settings.
void check_same_config(const std::filesystem::path& checkpoint, const RunConfig& config,
                       const std::string& otherwise =
                           "add --resume-mode=fork to start a new run from these weights and this "
                           "optimizer state");

}  // namespace vcas
