#include "tools/run_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/parse_number.h"
#include "core/read_json.h"
#include "data/text_lines.h"
#include "optim/checkpoint.h"
#include "optim/trainer.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

// Settings that say what is written and when, not what is trained.
bool is_harmless(const std::string& key) {
  static const std::vector<std::string> kHarmless = {
      "train.log_every",        "train.eval_every", "train.checkpoint_every",
      "train.keep_checkpoints", "data.text.cache",  "data.threads"};
  return key.starts_with("run.") || std::ranges::count(kHarmless, key) > 0;
}

bool is_checkpoint(const fs::path& folder) { return is_there(folder / "trainer_state.json"); }

// What runs write besides the lock. Other files that users keep there are not ours to remove.
bool is_of_a_run(const std::string& name) {
  static const std::vector<std::string> kNames = {
      "best",          "last",    "config.json",       "config.origins.txt",
      "metrics.jsonl", "log.txt", "class_to_idx.json", "report.html"};
  static const std::regex kNumbered("checkpoint-[0-9]+|crash-[0-9]+\\.json");
  return std::regex_match(name, kNumbered) || std::ranges::count(kNames, name) > 0;
}

// What an interrupted run leaves of what it was writing or removing.
bool is_rubbish(const std::string& name) {
  const std::string whole = finished_name(name);
  return is_of_a_run(whole) || whole == kComparisonFile ||
         std::ranges::count(kComparisonTables, whole) > 0;
}

std::string name_of(const fs::directory_entry& entry) { return entry.path().filename().string(); }

std::vector<fs::path> rubbish_in(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (is_rubbish(name_of(entry))) found.push_back(entry.path());
  return found;
}

void remove_rubbish(const fs::path& folder) {
  for (const fs::path& path : rubbish_in(folder)) fs::remove_all(path);
}

// Nothing but what a start leaves that was interrupted at once.
bool is_unused(const fs::path& folder) {
  std::error_code error;
  return !is_there(folder) ||
         std::ranges::all_of(fs::directory_iterator(folder, error), [](const auto& entry) {
           const std::string name = name_of(entry);
           return name == kLockFile || is_rubbish(name);
         });
}

// What the run, or the comparison with its runs, has written: paths below the folder.
std::vector<fs::path> entries_of_run(const fs::path& folder) {
  std::vector<fs::path> entries;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (is_of_a_run(name_of(entry))) entries.push_back(entry.path().filename());
  const std::vector<std::string> runs = runs_of_comparison(folder);
  if (!runs.empty()) entries.emplace_back(kComparisonFile);
  for (const char* table : kComparisonTables)
    if (!runs.empty() && fs::exists(folder / table)) entries.emplace_back(table);
  for (const std::string& run : runs)
    if (fs::is_directory(folder / run))
      for (const fs::path& entry : entries_of_run(folder / run)) entries.push_back(run / entry);
  return entries;
}

void set_run_aside(const fs::path& folder, const fs::path& to) {
  for (const fs::path& entry : entries_of_run(folder)) {
    fs::create_directories((to / entry).parent_path());
    fs::rename(folder / entry, to / entry);
  }
}

void bring_back(const fs::path& from, const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const fs::path target = folder / entry.path().filename();
    if (fs::is_directory(target))  // of a comparison's run: other files may have stayed there
      bring_back(entry.path(), target);
    else if (fs::exists(target))  // crash-STEP.json of the run that was to replace this one
      fs::remove(entry.path());
    else
      fs::rename(entry.path(), target);
  }
  fs::remove(from);
}

// Where a run waits that is being replaced, and where its parts are while they are moved. Moves can
// be interrupted: what is in the second one is always moved back.
fs::path set_aside(const fs::path& folder) { return folder / "replaced"; }
fs::path moving(const fs::path& folder) { return folder / "replaced.tmp"; }

bool is_run(const fs::path& folder) {
  return is_there(folder / "metrics.jsonl") || is_there(folder / kComparisonFile);
}

// Whether `folder` is a run's, whole or what a kill has left of it.
bool holds_run(const fs::path& folder) {
  std::error_code error;
  return fs::is_directory(folder, error) &&
         (is_run(folder) ||
          std::ranges::all_of(fs::directory_iterator(folder),
                              [](const auto& entry) { return is_of_a_run(name_of(entry)); }));
}

// The report is made of a run, and can be made again.
bool is_kept_in_a_run(const fs::path& path) {
  const std::string name = path.filename().string();
  const fs::path folder = path.parent_path();
  const bool has_name = (is_of_a_run(name) && name != "report.html") || name == kLockFile ||
                        path == set_aside(folder) || path == moving(folder) ||
                        name == kComparisonFile || std::ranges::count(kComparisonTables, name) > 0;
  return has_name && is_run(folder);
}

// A comparison has when one of its runs has.
bool has_saved(const fs::path& folder) {
  return find_newest_checkpoint(folder).step ||
         std::ranges::any_of(runs_of_comparison(folder),
                             [&](const std::string& run) { return has_saved(folder / run); });
}

void settle_replaced(const fs::path& folder) {
  if (holds_run(set_aside(folder))) {
    if (has_saved(folder)) {
      // By its name a start removes what a kill leaves of it.
      const fs::path going = folder / fmt::format("last.tmp-{}", ::getpid());
      fs::rename(set_aside(folder), going);
      fs::remove_all(going);
      return;
    }
    for (const fs::path& entry : entries_of_run(folder))
      if (!entry.filename().string().starts_with("crash-")) fs::remove_all(folder / entry);
    fs::rename(set_aside(folder), moving(folder));
  }
  if (fs::exists(moving(folder))) bring_back(moving(folder), folder);
}

// Weights that a run started from: another checkpoint of theirs may be the newest now.
bool is_of_one_run(const ConfigChange& change) {
  const auto run_of = [](const std::string& checkpoint) {
    const std::size_t end = checkpoint.rfind("/checkpoint-");
    return end == checkpoint.npos ? "" : checkpoint.substr(0, end);
  };
  return change.key == "model.pretrained" && !run_of(change.before).empty() &&
         run_of(change.before) == run_of(change.after);
}

// A line for each setting that decides what is trained and is not that of the checkpoint.
std::string differences(const RunConfig& saved, const RunConfig& config) {
  std::string changes;
  for (const ConfigChange& change : config_changes(saved, config))
    if (!is_harmless(change.key) && !is_of_one_run(change))
      changes +=
          fmt::format("{}{} differs from the checkpoint ({} -> {})", changes.empty() ? "" : "\n  ",
                      change.key, change.before, change.after);
  return changes;
}

bool begins_with(const fs::path& file, std::string_view begin) {
  std::string text(begin.size(), '\0');
  std::ifstream(file, std::ios::binary).read(text.data(), std::ssize(text));
  return text == begin;
}

// The number of "x-3" among the runs of "x", 1 of "x" itself; empty for other names, such as those
// with a date.
std::optional<std::int64_t> run_number(const std::string& name, const std::string& base) {
  static const std::regex kNumber("-([2-9]|[1-9][0-9]{1,5})");
  if (name == base) return 1;
  if (!name.starts_with(base) || !std::regex_match(name.substr(base.size()), kNumber))
    return std::nullopt;
  return parse_number<std::int64_t>(std::string_view(name).substr(base.size() + 1));
}

// Numbers of the runs that are there, the newest first.
std::set<std::int64_t, std::greater<>> run_numbers(const fs::path& folder) {
  std::set<std::int64_t, std::greater<>> numbers;
  std::error_code error;
  const fs::path parent = folder.has_parent_path() ? folder.parent_path() : ".";
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, error))
    if (const auto number = run_number(name_of(entry), folder.filename().string()))
      numbers.insert(*number);
  return numbers;
}

// 0: there is none yet.
std::int64_t newest_run_number(const fs::path& folder) {
  const auto numbers = run_numbers(folder);
  return numbers.empty() ? 0 : *numbers.begin();
}

fs::path numbered(fs::path folder, std::int64_t number) {
  return number <= 1 ? folder : folder += fmt::format("-{}", number);
}

// The folder itself, or the first above it that is there.
fs::path nearest_existing(fs::path folder) {
  while (folder != "." && !is_there(folder))
    folder = folder.has_parent_path() ? folder.parent_path() : ".";
  return folder;
}

// By errno.
[[noreturn]] void fail_cannot_write(const fs::path& folder, FolderUse use) {
  const std::string why = std::error_code(errno, std::generic_category()).message();
  if (use == FolderUse::kAsItIs && is_there(folder / "metrics.jsonl"))
    throw Error(ExitCode::kCannotCreate, fmt::format("{}: cannot write: {}", folder.string(), why),
                "--resume-mode=fork run.folder=FOLDER goes on elsewhere");
  throw Error(ExitCode::kCannotCreate, fmt::format("{}: cannot create: {}", folder.string(), why),
              "choose another run.folder");
}

// No other file gets that of one that is kept open. 0: there is none.
std::uint64_t file_number(const fs::path& file) {
  struct stat status {};
  return ::stat(file.c_str(), &status) == 0 ? status.st_ino : 0;
}

// "crash-37.json" is of step 37.
std::optional<std::int64_t> crashed_step(std::string_view name) {
  constexpr std::string_view kBegin = "crash-", kEnd = ".json";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return std::nullopt;
  name.remove_suffix(kEnd.size());
  return parse_number<std::int64_t>(name.substr(kBegin.size()));
}

}  // namespace

bool is_name_of_runs(const std::string& name) { return is_of_a_run(name) || is_rubbish(name); }

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

void make_folder(const fs::path& folder, const std::string& hint) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw Error(ExitCode::kCannotCreate,
                fmt::format("{}: cannot create: {}", folder.string(), error.message()), hint);
}

void check_output(const fs::path& target, const std::string& option, std::string_view begin) {
  const auto refuse = [&](const std::string& why, const std::string& hint) {
    throw Error(ExitCode::kCannotCreate, fmt::format("{}: {}", target.string(), why), hint);
  };
  const std::string elsewhere = "choose another place for " + option;
  const fs::path whole = fs::weakly_canonical(fs::absolute(target));
  for (fs::path path = whole; path.has_relative_path(); path = path.parent_path()) {
    if (is_checkpoint(path))
      refuse("would be written into the checkpoint " + path.string(), elsewhere);
    if (is_kept_in_a_run(path))
      refuse("belongs to the run in " + path.parent_path().string(), elsewhere);
  }
  if (begin.empty()) return;
  if (fs::is_directory(whole)) refuse("is a folder, and a file is needed", elsewhere);
  if (fs::is_regular_file(whole) && !fs::is_empty(whole) && !begins_with(whole, begin))
    refuse(fmt::format("there is a file that {} did not write", option),
           elsewhere + ", or remove the file");
}

void check_outside_runs(const fs::path& target, const std::string& option) {
  std::error_code error;
  for (fs::path path = fs::weakly_canonical(fs::absolute(target), error); path.has_relative_path();
       path = path.parent_path())
    if (is_kept_in_a_run(path) ||
        (is_rubbish(path.filename().string()) && is_run(path.parent_path())))
      throw Error(ExitCode::kCannotCreate,
                  fmt::format("{}: belongs to the run in {}, which removes it some day",
                              target.string(), path.parent_path().string()),
                  "choose another " + option);
}

void check_run_folder(const fs::path& folder, FolderUse use, const char* mark) {
  const auto refuse = [&](const std::string& why, const std::string& hint) {
    throw Error(ExitCode::kCannotCreate, folder.string() + ": " + why, hint);
  };
  if (const std::string fault = text_fault(folder.string()); !fault.empty())
    throw Error(ExitCode::kCannotCreate, fmt::format("{}: {}", folder.string(), fault),
                "rename it, or choose another run.folder");
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(fs::absolute(folder), error);
  if (is_checkpoint(whole))
    refuse("is a checkpoint, not the folder of a run", "choose another run.folder");
  if (use != FolderUse::kAsItIs) check_outside_runs(folder, "run.folder");
  if (use == FolderUse::kNext)  // another run may take it meanwhile; then there is a next one
    return check_run_folder(next_run_folder(folder), FolderUse::kAsItIs, mark);
  const fs::path existing = nearest_existing(folder);
  if (!fs::is_directory(existing, error))
    throw Error(ExitCode::kCannotCreate, existing.string() + ": is a file, and a folder is needed",
                "choose another run.folder");
  if (::access(existing.c_str(), W_OK | X_OK) != 0) fail_cannot_write(folder, use);
  if (use == FolderUse::kAsItIs || is_unused(folder)) return;
  if (std::ranges::none_of(std::vector<fs::path>{folder, set_aside(folder), moving(folder)},
                           [&](const fs::path& place) { return fs::exists(place / mark); }))
    refuse(fmt::format("is not empty and not the folder of a {} (it has no {}), so it is not "
                       "overwritten",
                       std::string_view(mark) == kComparisonFile ? "comparison" : "run", mark),
           "choose another run.folder");
  if (use == FolderUse::kNew)
    refuse("the folder of another run",
           "go on with that run by --resume, replace it by --overwrite, or choose another "
           "run.folder");
  if (fs::exists(set_aside(folder)) && !holds_run(set_aside(folder)))
    refuse("its \"replaced\" is of no run, and a run that is replaced waits there",
           "move that folder away");
}

void try_run_folder(const fs::path& folder, FolderUse use) {
  // By its name a start removes what a kill leaves of it.
  const fs::path probe = nearest_existing(folder) / fmt::format("last.tmp-{}", ::getpid());
  if (::mkdir(probe.c_str(), 0700) == 0)
    fs::remove(probe);
  else if (errno != EEXIST)  // left by a killed process
    fail_cannot_write(folder, use);
}

fs::path take_run_folder(const fs::path& folder, FolderUse use, const char* mark) {
  const std::string hint = "choose another run.folder";
  check_run_folder(folder, use, mark);
  if (use != FolderUse::kNext) {
    make_folder(folder, hint);
    return folder;
  }
  if (folder.has_parent_path()) make_folder(folder.parent_path(), hint);
  std::int64_t number = newest_run_number(folder);
  while (true) {  // another run may have been faster
    const fs::path next = numbered(folder, ++number);
    std::error_code error;
    if (fs::create_directory(next, error)) return next;
    if (error && error != std::errc::file_exists) make_folder(next, hint);
  }
}

void check_not_source(const fs::path& folder, const fs::path& checkpoint) {
  if (!is_there(folder)) return;
  std::error_code error;
  for (fs::path above = fs::canonical(checkpoint); above.has_relative_path();
       above = above.parent_path())
    if (fs::equivalent(above, folder, error))
      throw Error(ExitCode::kCannotCreate,
                  fmt::format("{}: holds {}, which the new run starts from", folder.string(),
                              checkpoint.string()),
                  "choose another run.folder");
}

FolderUse use_of(const RunOptions& options) {
  if (options.overwrite) return FolderUse::kOverwrite;
  return options.folder.empty() ? FolderUse::kNext : FolderUse::kNew;
}

fs::path newest_run_folder(const fs::path& folder,
                           const std::function<bool(const fs::path&)>& fits) {
  for (const std::int64_t number : run_numbers(folder))
    if (fits(numbered(folder, number))) return numbered(folder, number);
  return numbered(folder, newest_run_number(folder));
}

fs::path next_run_folder(const fs::path& folder) {
  return numbered(folder, newest_run_number(folder) + 1);
}

ReplacedRun::ReplacedRun(fs::path folder, FolderUse use) : folder_(std::move(folder)) {
  settle();
  remove_rubbish(folder_);
  for (const std::string& name : runs_of_comparison(folder_)) {
    const fs::path run = folder_ / name;
    if (!fs::is_directory(run) || (!is_being_replaced(run) && rubbish_in(run).empty())) continue;
    const FolderLock lock(run);
    settle_replaced(run);
    remove_rubbish(run);
  }
  if (use != FolderUse::kOverwrite || entries_of_run(folder_).empty()) return;
  set_run_aside(folder_, moving(folder_));
  fs::rename(moving(folder_), set_aside(folder_));
}

ReplacedRun::~ReplacedRun() {
  try {
    settle();
  } catch (const std::exception&) {  // the next start tries again
  }
}

void ReplacedRun::settle() { settle_replaced(folder_); }

RunFolder::RunFolder(const fs::path& folder, FolderUse use)
    : path_(take_run_folder(folder, use)),
      lock_(path_),
      replaced_(path_, use),
      metrics_(path_ / "metrics.jsonl"),
      log_(path_ / "log.txt", std::ios::app),
      lock_number_(file_number(path_ / kLockFile)) {}

void RunFolder::check_place() const {
  if (file_number(path_ / kLockFile) != lock_number_)
    throw Error(ExitCode::kIoError,
                path_.string() + ": was moved or removed while the run was using it",
                "--resume goes on from its last checkpoint, where the folder is now");
}

void RunFolder::write_log(std::string_view text) {
  const std::string time = utc_time();
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    log_ << time << "  " << text.substr(0, end) << '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  log_.flush();
}

std::vector<std::string> runs_of_comparison(const fs::path& folder) {
  std::vector<std::string> names;
  const fs::path file = folder / kComparisonFile;
  if (!fs::exists(file) || fs::exists(folder / "metrics.jsonl")) return names;
  try {
    const nlohmann::json content = read_json(file);
    for (const nlohmann::json& run : content.at("runs")) names.push_back(run.at("name"));
  } catch (const nlohmann::json::exception& error) {
    throw Error(ExitCode::kBadData, fmt::format("{}: {}", file.string(), error.what()));
  }
  return names;
}

bool is_being_replaced(const fs::path& folder) {
  return holds_run(set_aside(folder)) || fs::exists(moving(folder));
}

void settle_interrupted(const fs::path& folder) {
  if (!is_being_replaced(folder)) return;
  const FolderLock lock(folder);
  settle_replaced(folder);
}

std::optional<std::int64_t> newest_crash(const fs::path& run) {
  std::optional<std::int64_t> newest;
  fs::file_time_type written = fs::file_time_type::min();
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(run, error)) {
    const std::optional<std::int64_t> step = crashed_step(name_of(entry));
    if (!step || entry.last_write_time() < written) continue;
    newest = step;
    written = entry.last_write_time();
  }
  if (error)
    throw Error(ExitCode::kNoInput, fmt::format("{}: {}", run.string(), error.message()),
                "name the folder of a run, and make it readable");
  return newest;
}

bool is_of_comparison(const fs::path& run) {
  const fs::path whole = named(run / ".");  // absolute
  return fs::exists(whole.parent_path() / kComparisonFile) ||
         fs::exists(whole.parent_path().parent_path() / kComparisonFile);
}

constexpr const char* kModelHint =
    "give a run that has saved, or one of its checkpoints, such as runs/x/best";

// `name`: the user's spelling of `folder`.
static std::string hint_without_checkpoint(const fs::path& folder, const std::string& name,
                                           bool to_resume) {
  if (fs::is_directory(folder) && newest_crash(folder))
    return "it diverged before it saved; vcas replay says where";
  if (is_of_comparison(folder)) return "vcas compare --keep-weights keeps those of finished runs";
  if (is_being_replaced(folder))
    return fmt::format(
        "the run that was being replaced is whole: vcas-train --resume {} brings it back", name);
  if (!to_resume) return kModelHint;
  if (!is_run(folder)) return "start again without --resume";
  return fmt::format("start again without --resume; --overwrite run.folder={} takes its place",
                     name);
}

ResumePoint find_resume_point(const fs::path& given, bool to_resume) {
  const fs::path folder = without_slash(given);
  std::error_code error;
  const fs::path path = fs::canonical(folder, error);  // "run/best" is a link
  if (error)
    throw Error(ExitCode::kNoInput, fmt::format("{}: {}", folder.string(), error.message()),
                to_resume ? "there is nothing to resume; start without --resume" : kModelHint);
  if (is_checkpoint(path)) {
    // The user's spelling of the run's folder is kept, but links may lie elsewhere.
    const fs::path run = folder.parent_path();
    return {.run = fs::equivalent(run, path.parent_path(), error) ? run : path.parent_path(),
            .checkpoint = path};
  }
  NewestCheckpoint newest = find_newest_checkpoint(folder);
  if (!newest.step && to_resume) {
    settle_interrupted(folder);
    newest = find_newest_checkpoint(folder);
  }
  if (!newest.step) {
    std::string ignored;
    for (const std::string& line : newest.ignored) ignored += "\n  " + line;
    if (fs::exists(path / "model.safetensors", error))
      throw Error(ExitCode::kNoInput, folder.string() + ": a Hugging Face folder, no checkpoint",
                  "model.pretrained names it for a run; vcas export makes such folders");
    if (const std::vector<std::string> runs = runs_of_comparison(path); !runs.empty())
      throw Error(
          ExitCode::kNoInput, folder.string() + ": a comparison, no complete checkpoint",
          fmt::format("each run has a folder in it, such as {}{}", (folder / runs.front()).string(),
                      to_resume ? "; vcas compare --resume goes on with all" : ""));
    throw Error(ExitCode::kNoInput, folder.string() + ": no complete checkpoint" + ignored,
                hint_without_checkpoint(path, folder.string(), to_resume));
  }
  return {.run = folder,
          .checkpoint = checkpoint_folder(folder, *newest.step),
          .ignored = std::move(newest.ignored),
          .is_newest = true};
}

bool has_same_settings(const fs::path& saved, const RunConfig& config) {
  try {
    return differences(saved_config(saved), config).empty();
  } catch (const Error&) {  // of a newer program, or damaged
    return false;
  }
}

bool is_run_with(const fs::path& run, const RunConfig& config) {
  const std::vector<std::int64_t> steps = checkpoint_steps(run);
  return has_same_settings(steps.empty() ? run : checkpoint_folder(run, steps.back()), config);
}

void check_same_config(const fs::path& checkpoint, const RunConfig& config,
                       const std::string& otherwise) {
  const RunConfig saved = saved_config(checkpoint);
  if (config.ranks > 1 && saved.train.micro_batch == 0)
    throw Error(
        ExitCode::kBadConfig,
        fmt::format("{}: a step is one micro-batch (train.micro_batch is 0), which {} ranks "
                    "cannot share bit for bit",
                    checkpoint.string(), config.ranks),
        "go on in one process, or add --resume-mode=fork to start a new run from there");
  check_shares(saved.train.batch_size, saved.train.micro_batch, config.ranks);
  const std::string changes = differences(saved, config);
  if (changes.empty()) return;
  RunConfig with_its_shares = config;
  with_its_shares.train.micro_batch = saved.train.micro_batch;
  const std::string remedy =
      differences(saved, with_its_shares).empty()
          ? fmt::format("set train.micro_batch={}, or ", saved.train.micro_batch)
          : "";
  throw Error(ExitCode::kBadConfig, changes + "; this run would not be an exact continuation",
              remedy + otherwise);
}

}  // namespace vcas
