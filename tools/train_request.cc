#include "tools/train_request.h"

#include <fmt/format.h>

#include <tuple>

#include "core/error.h"
#include "optim/checkpoint.h"
#include "tools/model_setup.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

// What a checkpoint says of the data, as one object.
nlohmann::json facts_json(const ModelFacts& facts, const Model& model) {
  nlohmann::json all;
  for (const auto& [name, text] : model_files(facts, nullptr, model))
    all.update(nlohmann::json::parse(text));
  return all;
}

// Throws unless going on from the checkpoint takes nothing away and leaves one timeline.
void check_continuation(const ResumePoint& from, bool overwrite) {
  const std::string checkpoint = from.checkpoint.string();
  if (!fs::exists(from.run / "metrics.jsonl"))
    throw Error(ExitCode::kNoInput,
                fmt::format("{}: not in the folder of a run ({} has no metrics.jsonl)", checkpoint,
                            from.run.string()),
                "--resume-mode=fork starts a new run from it");
  const std::int64_t newest = find_newest_checkpoint(from.run).step.value_or(0);
  if (!overwrite && checkpoint_folder(from.run, newest).filename() != from.checkpoint.filename())
    throw Error(ExitCode::kCannotCreate,
                fmt::format("{} has later checkpoints, up to checkpoint-{}; going on from {} would "
                            "replace them",
                            from.run.string(), newest, from.checkpoint.filename().string()),
                fmt::format("--resume {} goes on from the last one, --resume-mode=fork starts a "
                            "new run, --overwrite removes the later ones",
                            from.run.string()));
}

// Throws kBadConfig where a fork could be evaluated on what the checkpoint was trained on.
void check_same_split(const fs::path& checkpoint, const RunConfig& config) {
  const RunConfig saved = load_config((checkpoint / "config.json").string(), {}).config;
  const auto source = [](const DataOptions& data) {
    return std::tie(data.type, data.folder, data.text.task, data.text.train_file);
  };
  if (config.data.validation_share == 0 || source(saved.data) != source(config.data)) return;
  for (const ConfigChange& change : config_changes(saved, config))
    if (change.key == "seed" || change.key == "data.validation_share")
      throw Error(ExitCode::kBadConfig,
                  fmt::format("{} is {} in the checkpoint and {} here: items that were trained on "
                              "could be evaluated on",
                              change.key, change.before, change.after),
                  "leave it as it was; data.validation_share=0 takes the evaluation data");
}

}  // namespace

void check_request(const TrainRequest& request) {
  if (request.continues()) {
    check_same_config(request.from.checkpoint, request.loaded.config);
    check_continuation(request.from, request.loaded.config.run.overwrite);
  }
  if (request.fork) {
    check_same_split(request.from.checkpoint, request.loaded.config);
    if (request.use() != FolderUse::kNext)
      check_not_source(request.loaded.folder(), request.from.checkpoint);
  }
  check_run_folder(request.folder(), request.use());
}

void check_same_data(const fs::path& checkpoint, const nlohmann::json& saved, const RunData& data,
                     const Model& model) {
  std::string changes;
  const auto add = [&](const std::string& file, const std::string& what) {
    changes += fmt::format("{}{} {}", changes.empty() ? "" : "\n  ", file, what);
  };
  const nlohmann::json found = data.fingerprints();
  for (const auto& [file, hash] : saved.items())
    if (!found.contains(file))
      add(file, "is not read any more");
    else if (!is_same_fingerprint(file, hash, found.at(file)))
      add(file, "has changed");
  for (const auto& [file, hash] : found.items())
    if (!saved.contains(file)) add(file, "is new");
  const nlohmann::json facts = facts_json(read_model_facts(checkpoint), model),
                       found_facts = facts_json(data.facts(), model);
  for (const auto& [fact, before] : facts.items())
    if (const nlohmann::json now = found_facts.value(fact, nlohmann::json()); now != before)
      add(fact, fmt::format("has changed from {} to {}", before.dump(), now.dump()));
  if (changes.empty()) return;
  throw Error(ExitCode::kBadConfig,
              fmt::format("{} since {} was saved; this run would not be an exact continuation",
                          changes, checkpoint.string()),
              "bring the files back, or add --resume-mode=fork to start a new run from these "
              "weights and this optimizer state");
}

}  // namespace vcas
