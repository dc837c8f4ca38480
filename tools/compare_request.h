// What `vcas compare` is asked for: which variants, at which seeds, in which folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/run_config.h"
#include "tools/run_folder.h"

namespace vcas {

struct Variant {
  std::string name;
  LoadedConfig loaded;
};

struct CompareRequest {
  std::vector<Variant> variants = {};
  std::vector<std::uint64_t> seeds = {};
  std::filesystem::path folder = {};  // of the folders of all runs
  FolderUse use = FolderUse::kNext;
  // Accuracy to which time is told. Empty: the one that the base ends with.
  std::optional<double> to_accuracy = {};
  bool keep_weights = false;  // of runs that are finished
  bool json = false;

  // The settings of all variants get the first seed.
  void use_seeds(std::vector<std::uint64_t> all);
  // Below `folder`: "exact", of several seeds "exact/seed0".
  std::string run_name(const Variant& variant, std::uint64_t seed) const;
  // All variants of the first seed, then those of the next one.
  std::vector<std::string> run_names() const;
  // The variant that savings refer to: the first exact one, else the first.
  const Variant& base() const;
};

// The configuration with further settings, "section.name=value".
using LoadSettings = std::function<LoadedConfig(const std::vector<std::string>& settings)>;

// The exact twin of a configuration against itself, in a folder beside the configuration's own.
// Throws kUsage for an exact configuration.
CompareRequest compare_with_exact(const LoadedConfig& loaded);

// Variants of one configuration, each "NAME: KEY=VALUE KEY=VALUE" or "exact".
// Throws kUsage for bad names, kBadConfig for settings that make results incomparable.
CompareRequest compare_variants(const std::vector<std::string>& variants, const LoadSettings& load);

// Configurations against each other, named after their files.
// Throws kBadConfig for other seeds and for settings that make results incomparable.
CompareRequest compare_configs(const std::vector<LoadedConfig>& configs);

// "0,1,2". Throws kUsage.
std::vector<std::uint64_t> parse_seeds(const std::string& text);

// What `vcas compare --resume FOLDER` goes on with, with the settings of all changed.
// Throws kNoInput where it is no comparison.
CompareRequest saved_comparison(const std::filesystem::path& folder,
                                const std::vector<std::string>& overrides);

// Whether the run, as compare.json has it, has diverged.
bool has_diverged(const nlohmann::ordered_json& run);
// Whether it has its results, or has diverged.
bool is_over(const nlohmann::ordered_json& run);
// Whether a run of the comparison is over or has a checkpoint.
bool has_progress(const std::filesystem::path& folder);

// Goes on in this folder, or in the newest one with the same runs and settings if it is empty.
void resume_comparison(CompareRequest& request, const std::filesystem::path& folder);

// What compare.json has of a request: enough for saved_comparison.
nlohmann::ordered_json to_json(const CompareRequest& request);

}  // namespace vcas
