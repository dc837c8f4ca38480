#include "tools/run_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "core/error.h"
#include "optim/checkpoint.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

// Settings that say what is written and when, not what is trained.
bool is_harmless(const std::string& key) {
  static const std::vector<std::string> kHarmless = {"train.log_every", "train.eval_every",
                                                     "train.checkpoint_every",
                                                     "train.keep_checkpoints", "data.text.cache"};
  return key.starts_with("run.") ||
         std::find(kHarmless.begin(), kHarmless.end(), key) != kHarmless.end();
}

bool is_checkpoint(const fs::path& folder) { return fs::exists(folder / "trainer_state.json"); }

bool is_empty_or_absent(const fs::path& folder) {
  std::error_code error;
  return !fs::exists(folder, error) || fs::is_empty(folder, error);
}

fs::path prepared(const fs::path& folder, FolderUse use) {
  check_run_folder(folder, use);
  make_folder(folder, "choose another run.folder");
  return folder;
}

// What runs write besides the lock. Other files that users keep there are not ours to remove.
bool is_of_a_run(const std::string& name) {
  static const std::vector<std::string> kNames = {"best",          "last",    "config.json",
                                                  "metrics.jsonl", "log.txt", "class_to_idx.json"};
  return name.starts_with("checkpoint-") || name.starts_with("crash-") ||
         std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

// The lock is held, so nobody else writes here.
fs::path cleared(const fs::path& folder, FolderUse use) {
  if (use == FolderUse::kOverwrite)
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
      if (is_of_a_run(entry.path().filename().string())) fs::remove_all(entry.path());
  return folder / "metrics.jsonl";
}

}  // namespace

void make_folder(const fs::path& folder, const std::string& hint) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw Error(ExitCode::kCannotCreate,
                fmt::format("{}: cannot create: {}", folder.string(), error.message()), hint);
}

void check_run_folder(const fs::path& folder, FolderUse use) {
  const auto refuse = [&](const std::string& why, const std::string& hint) {
    throw Error(ExitCode::kCannotCreate, folder.string() + ": " + why, hint);
  };
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_directory(folder, error))
    refuse("is a file, and a folder is needed", "choose another run.folder");
  fs::path existing = fs::absolute(folder);
  while (!fs::exists(existing, error) && existing.has_relative_path())
    existing = existing.parent_path();
  if (is_checkpoint(folder))
    refuse("is a checkpoint, not the folder of a run", "choose another run.folder");
  if (::access(existing.c_str(), W_OK | X_OK) != 0)
    refuse("cannot create: " + std::error_code(errno, std::generic_category()).message(),
           "choose another run.folder");
  if (use == FolderUse::kResume || is_empty_or_absent(folder)) return;
  if (use == FolderUse::kNew)
    refuse("the folder of another run",
           "go on with that run by --resume, replace it by --overwrite, or choose another "
           "run.folder");
  if (!fs::exists(folder / "metrics.jsonl"))
    refuse("is not empty and not the folder of a run, so it is not overwritten",
           "choose another run.folder");
}

RunFolder::RunFolder(const fs::path& folder, FolderUse use)
    : path_(prepared(folder, use)),
      lock_(path_),
      metrics_(cleared(path_, use)),
      log_(path_ / "log.txt", std::ios::app) {}

void RunFolder::log(std::string_view line) { log_ << line << std::endl; }

ResumePoint find_resume_point(const fs::path& given, bool to_resume) {
  const fs::path folder = given.has_filename() ? given : given.parent_path();  // "run/best/"
  const std::string model_hint =
      "--model takes a run that has saved, or one of its checkpoints, such as runs/x/best";
  std::error_code error;
  const fs::path path = fs::canonical(folder, error);  // "run/best" is a link
  if (error)
    throw Error(ExitCode::kNoInput, fmt::format("{}: {}", folder.string(), error.message()),
                to_resume ? "there is nothing to resume; start without --resume" : model_hint);
  // The user's spelling of the run's folder is kept where there is one.
  if (is_checkpoint(path))
    return {folder.has_parent_path() ? folder.parent_path() : path.parent_path(), path, {}};
  NewestCheckpoint newest = find_newest_checkpoint(folder);
  if (!newest.step) {
    std::string ignored;
    for (const std::string& line : newest.ignored) ignored += "\n  " + line;
    if (fs::exists(path / "model.safetensors", error))
      throw Error(ExitCode::kNoInput, folder.string() + ": a Hugging Face folder, no checkpoint",
                  "model.pretrained names it for a run; vcas export makes such folders");
    throw Error(ExitCode::kNoInput, folder.string() + ": no complete checkpoint" + ignored,
                to_resume ? "start again with --overwrite" : model_hint);
  }
  return {folder, checkpoint_folder(folder, *newest.step), std::move(newest.ignored)};
}

void check_same_config(const fs::path& checkpoint, const RunConfig& config) {
  RunConfig saved;
  read_config(saved, {.documents = {load_config_text((checkpoint / "config.json").string())}});
  std::string changes;
  int count = 0;
  for (const ConfigChange& change : config_changes(saved, config)) {
    if (is_harmless(change.key)) continue;
    changes += fmt::format("{}{} differs from the checkpoint ({} -> {})", count++ ? "\n  " : "",
                           change.key, change.before, change.after);
  }
  if (count > 0)
    throw Error(ExitCode::kBadConfig, changes + "; this run would not be an exact continuation",
                "add --resume-mode=fork to start a new run from these weights and this optimizer "
                "state");
}

}  // namespace vcas
