#include "tools/held_out.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/nearest_name.h"
#include "optim/checkpoint.h"
#include "tools/model_setup.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

// The split depends on the seed, the share, and which items there are with which labels.
// Items of texts to learn words from are parts of all tokens.
bool decides_split(const std::string& key, bool tokens_decide) {
  static const std::vector<std::string> kOthers = {
      "data.folder",       "data.text.train_file", "data.text.test_file",
      "data.limit",        "data.eval_limit",      "data.flip",
      "data.crop_padding", "data.text.cache",      "data.threads"};
  static const std::vector<std::string> kOfTokens = {"data.text.vocabulary", "data.text.lower_case",
                                                     "data.text.max_length"};
  const auto is_in = [&](const std::vector<std::string>& keys) {
    return std::ranges::count(keys, key) > 0;
  };
  return key == "seed" || (key.starts_with("data.") && !key.starts_with("data.image.") &&
                           !is_in(kOthers) && (tokens_decide || !is_in(kOfTokens)));
}

// The first change that makes another split.
std::optional<ConfigChange> split_change(const RunConfig& saved, const RunConfig& config) {
  for (const ConfigChange& change : config_changes(saved, config))
    if (decides_split(change.key, config.model.kind->learns_words())) return change;
  return std::nullopt;
}

// Whether the checkpoint was trained with this file, whatever it was called. Equal hashes come
// first: to compare with an older kind of hash, the whole file is read.
bool has_read(const nlohmann::json& saved, const std::string& file, const std::string& hash) {
  return std::ranges::any_of(saved, [&](const nlohmann::json& of) { return of == hash; }) ||
         std::ranges::any_of(
             saved, [&](const nlohmann::json& of) { return is_same_fingerprint(file, of, hash); });
}

// In the order of the files' names, which is that of their items.
std::vector<std::string> file_hashes(const std::map<std::string, std::string>& fingerprints) {
  std::vector<std::string> hashes;
  for (const auto& [file, hash] : fingerprints)
    if (hash.starts_with(kFileHash)) hashes.push_back(hash);
  return hashes;
}

// The split is that of all files together. Older checkpoints have other hashes.
void check_all_files(const nlohmann::json& saved, const RunData& data, const fs::path& checkpoint) {
  const std::vector<std::string> before = file_hashes(saved);
  if (before.empty() || before == file_hashes(data.fingerprints())) return;
  throw Error(ExitCode::kBadConfig,
              fmt::format("the files are not those that {} was trained with, all and in their "
                          "order: items that were trained on could be evaluated on",
                          checkpoint.string()),
              "bring them back; data.validation_share=0 takes the evaluation data");
}

[[noreturn]] void fail_other_file(const std::string& file, const fs::path& checkpoint,
                                  ExitCode code) {
  throw Error(code,
              fmt::format("{} is not what {} was trained with: items that were trained on could "
                          "be evaluated on",
                          file, checkpoint.string()),
              "bring the file back; data.validation_share=0 takes the evaluation data");
}

constexpr const char* kHint =
    "leave it as it was; data.validation_share=0 takes the evaluation data";

}  // namespace

void check_split(const RunConfig& saved, const RunConfig& config) {
  if (config.data.validation_share == 0) return;
  if (const std::optional<ConfigChange> change = split_change(saved, config))
    throw Error(ExitCode::kBadConfig,
                fmt::format("{} is {} in the checkpoint and {} here: items that were trained on "
                            "could be evaluated on",
                            change->key, change->before, change->after),
                kHint);
}

void check_held_out_data(const fs::path& checkpoint, const nlohmann::json& saved,
                         const RunData& data) {
  for (const auto& [file, hash] : data.fingerprints())
    if (!has_read(saved, file, hash)) fail_other_file(file, checkpoint, ExitCode::kBadData);
  check_all_files(saved, data, checkpoint);
}

std::string check_forked_split(const fs::path& checkpoint, const RunConfig& config,
                               const RunData& data) {
  if (config.data.validation_share == 0) return {};
  const RunConfig before = saved_config(checkpoint);
  RunConfig of_same_share = before;
  of_same_share.data.validation_share = config.data.validation_share;
  if (data.train->sources().empty() && !split_change(of_same_share, config))
    check_split(before, config);  // no files, and the same items
  const nlohmann::json saved = read_trainer_state(checkpoint).at("data");
  const std::map<std::string, std::string> found = data.fingerprints();
  std::vector<std::string> unread;
  bool is_same = false;
  for (const SourceFile& source : data.train->sources()) {
    const std::string file = source.path.string();
    if (has_read(saved, file, found.at(file)))
      is_same = true;
    else if (saved.contains(file))
      fail_other_file(file, checkpoint, ExitCode::kBadConfig);
    else
      unread.push_back(file);
  }
  if (!is_same)
    return unread.empty() ? ""
                          : fmt::format(
                                "{} has not read {}: if it was trained on some of these "
                                "items, they could be evaluated on",
                                checkpoint.string(), some_of(unread));
  if (!unread.empty()) fail_other_file(unread.front(), checkpoint, ExitCode::kBadConfig);
  check_split(before, config);
  check_all_files(saved, data, checkpoint);
  if (read_model_facts(checkpoint).class_names != data.facts().class_names)
    throw Error(ExitCode::kBadConfig,
                "the classes have another order than in the checkpoint: items that were trained on "
                "could be evaluated on",
                kHint);
  return {};
}

}  // namespace vcas
