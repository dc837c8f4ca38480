// What is asked of a run, and whether it may begin so.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/ranks.h"
#include "tools/run_config.h"
#include "tools/run_data.h"
#include "tools/run_folder.h"

namespace vcas {

struct TrainRequest {
  LoadedConfig loaded;
  bool resume = false;
  // Empty without `resume`. check_same_config says whether its run goes on.
  ResumePoint from = {};
  bool fork = false;  // from there, but as a new run whose settings may differ
  bool timing = false;
  // Steps that a profiler or a trace records, counted from 1; 0: none.
  std::int64_t profile_first = 0, profile_last = 0;
  std::filesystem::path trace = {};  // the file of a Chrome trace of these steps; empty: none
  std::shared_ptr<Ranks> ranks = one_rank();

  bool continues() const { return resume && !fork; }
  FolderUse use() const { return continues() ? FolderUse::kAsItIs : use_of(loaded.config.run); }
  std::filesystem::path folder() const {
    return continues() ? from.run : std::filesystem::path(loaded.folder());
  }
};

// Throws if the run may not begin so. It does nothing slow:
// nobody should wait for the data to learn that the folder is taken.
void check_request(const TrainRequest& request);

// A run that goes on computes with as many threads as before: others give other bits.
// Not on another number of ranks. Its bits are others anyway, and so are each rank's cores.
// Throws kBadData for a damaged checkpoint.
void keep_threads(TrainRequest& request);

// The files alone, of a run that goes on: before the data are held to its settings.
void check_same_files(const TrainRequest& request, const RunData& data);

// Throws kBadConfig unless the run finds the files of the checkpoint's run, which `saved` lists.
// It must also make the same of them: statistics and the order of classes may come from elsewhere.
// `fork`: the message is that of a new run, which takes over what is known of each item.
void check_same_data(const std::filesystem::path& checkpoint, const nlohmann::json& saved,
                     const RunData& data, bool fork);

// What may be a mistake: in the data, of settings that nothing reads, of a fork.
// Throws as check_forked_split.
std::vector<std::string> run_warnings(const TrainRequest& request, const RunData& data,
                                      const Model& model);

}  // namespace vcas
