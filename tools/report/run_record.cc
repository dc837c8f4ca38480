#include "tools/report/run_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>

#include "core/error.h"
#include "core/files.h"
#include "core/metrics.h"
#include "core/read_json.h"
#include "optim/checkpoint.h"
#include "tools/run_folder.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

constexpr const char* kFolderHint = "name the folder of a run or of a comparison, such as runs/x";

// `a` and `b`: events "start".
bool is_same_machine(const nlohmann::json& a, const nlohmann::json& b) {
  return std::ranges::all_of(std::array{"host", "device", "threads", "ranks"},
                             [&](const char* key) { return member(a, key) == member(b, key); });
}

void take_event(RunRecord& run, nlohmann::json line) {
  const std::string event = text(line, "event");
  if (event == "train") {
    run.train.push_back(std::move(line));
  } else if (event == "eval") {
    run.eval.push_back(std::move(line));
  } else if (event == "variance") {
    run.variance.push_back(std::move(line));
  } else if (event == "start") {
    run.config = member(line, "config");  // a run that goes on may save and log otherwise
    if (run.start.is_null())
      run.start = std::move(line);
    else if (!is_same_machine(run.start, line))
      run.has_moved = true;
  } else if (event == "end") {
    run.end = std::move(line);
  } else if (event == "warning") {
    if (const std::string message = text(line, "message");
        std::ranges::count(run.warnings, message) == 0)
      run.warnings.push_back(message);
  }
}

void read_config(RunRecord& run) {
  const fs::path file = run.folder / "config.json";
  if (run.config.is_object() || !fs::exists(file)) return;
  try {
    run.config = read_json(file);
  } catch (const Error&) {  // the report does without
  }
  if (run.config.is_object()) return;
  run.config = nullptr;
  run.gaps.push_back("config.json is damaged, and the settings are not known");
}

// Why the run has no end, and what to do about it.
std::string how_to_go_on(const RunRecord& run) {
  const fs::path& folder = run.folder;
  const std::optional<std::int64_t> crash = newest_crash(folder);
  const auto was_evaluated = [&](const std::string& warning) {
    return warning.starts_with(fmt::format("evaluation at step {}:", *crash));
  };
  if (is_locked(folder)) return "it is still going on";
  if (crash >= run.steps() && std::ranges::any_of(run.warnings, was_evaluated))
    return fmt::format("the evaluation of step {} was not finite: vcas replay names the operation",
                       *crash);
  if (crash > run.steps())  // else of a run that this one came back for
    return fmt::format("step {} was not finite: vcas replay names the operation", *crash);
  if (is_of_comparison(folder)) return "vcas compare --resume goes on with it";
  if (!checkpoint_steps(folder).empty()) return "vcas-train --resume goes on with it";
  if (!is_being_replaced(folder)) return "it has saved nothing: train again with --overwrite";
  return "it has saved nothing: vcas-train --resume brings back the run that it was to replace";
}

void note_gaps(RunRecord& run, bool is_torn) {
  if (is_torn) run.gaps.push_back("the last line of metrics.jsonl is cut, and left out");
  if (run.start.is_null()) run.gaps.push_back("there is no event \"start\": no names of layers");
  if (run.train.empty()) run.gaps.push_back("no training step was logged");
  if (!run.end.is_null()) return;
  const double total = number(run.start, "total_steps");
  run.gaps.push_back(
      fmt::format("the run has not ended: its last logged step is {}{}; {}", run.steps(),
                  std::isfinite(total) ? fmt::format(" of {:.0f}", total) : "", how_to_go_on(run)));
}

RunRecord read_run(const fs::path& folder) {
  const fs::path file = folder / "metrics.jsonl";
  if (!fs::exists(file))
    throw Error(ExitCode::kNoInput,
                folder.string() + ": not the folder of a run, which has metrics.jsonl",
                kFolderHint);
  RunRecord run;
  run.folder = folder;
  std::string begun;
  bool any = false;
  const bool is_torn = read_metrics(file, [&](nlohmann::json line) {
    any = true;
    if (text(line, "event") == "start") begun = text(line, "date");
    line["date"] = begun;
    take_event(run, std::move(line));
  });
  if (!any)
    throw Error(ExitCode::kBadData, file.string() + ": holds no event",
                "the run has ended before its first line; train again");
  read_config(run);
  note_gaps(run, is_torn);
  return run;
}

// The last folder of the path; more of it where runs share that.
void name_runs(std::vector<RunRecord>& runs) {
  const auto set_names = [&](auto name) {
    for (RunRecord& run : runs) {
      run.name = name(without_slash(fs::absolute(run.folder).lexically_normal()));  // of "." too
    }
    std::set<std::string> names;
    for (const RunRecord& run : runs) names.insert(run.name);
    return names.size() == runs.size();
  };
  if (set_names([](const fs::path& folder) { return folder.filename().string(); })) return;
  if (set_names([](const fs::path& folder) {
        return (folder.parent_path().filename() / folder.filename()).string();
      }))
    return;
  set_names([](const fs::path& folder) { return folder.string(); });
}

// Settings without those that a twin may have otherwise.
nlohmann::json shared_settings(const RunRecord& run) {
  nlohmann::json config = run.config;
  for (const char* section : {"run", "method"}) config.erase(section);
  return config;
}

}  // namespace

const nlohmann::json& member(const nlohmann::json& object, std::string_view key) {
  static const nlohmann::json none;
  const auto found = object.find(key);
  return found == object.end() ? none : *found;
}

double number(const nlohmann::json& object, const std::string& key) {
  const nlohmann::json& value = member(object, key);
  return value.is_number() ? value.get<double>() : kUnknown;
}

std::vector<double> numbers(const nlohmann::json& object, const std::string& key) {
  std::vector<double> out;
  if (const nlohmann::json& values = member(object, key); values.is_array())
    for (const nlohmann::json& value : values)
      out.push_back(value.is_number() ? value.get<double>() : kUnknown);
  return out;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::string text(const nlohmann::json& object, const std::string& key) {
  const nlohmann::json& value = member(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}

std::vector<double> column(const std::vector<nlohmann::json>& events, const std::string& key) {
  std::vector<double> out;
  for (const nlohmann::json& event : events) out.push_back(number(event, key));
  return out;
}

std::int64_t RunRecord::steps() const {
  const nlohmann::json& last = !end.is_null() ? end : train.empty() ? start : train.back();
  const nlohmann::json& step = member(last, "step");
  return step.is_number_integer() ? step.get<std::int64_t>() : 0;
}

double RunRecord::last_number(const std::string& key) const {
  if (!end.is_null()) return number(end, key);
  return train.empty() ? kUnknown : number(train.back(), key);
}

bool RunRecord::samples() const {
  const nlohmann::json& method = member(config, "method");
  return method.is_object() ? text(method, "type") != "exact" : !variance.empty();
}

bool RunRecord::has_ratios() const {
  const nlohmann::json& method = member(config, "method");
  return method.is_object() ? text(method, "type") == "vcas" : !variance.empty();
}

bool RunRecord::is_exact() const {
  const double saved = last_number("flops_saved");  // NaN where none are counted
  return !samples() && text(start, "fork_of").empty() && !(std::abs(saved) > 0);
}

std::vector<RunRecord> read_runs(const std::vector<fs::path>& folders,
                                 std::vector<std::string>& left_out) {
  std::vector<std::pair<fs::path, bool>> wanted;  // the second: of a comparison that was named
  for (const fs::path& given : folders) {
    const fs::path folder = without_slash(given);
    if (!fs::exists(folder))
      throw Error(ExitCode::kNoInput, folder.string() + ": there is no such folder", kFolderHint);
    if (!fs::is_directory(folder))
      throw Error(ExitCode::kNoInput, folder.string() + ": is no folder", kFolderHint);
    const std::vector<std::string> names = runs_of_comparison(folder);
    for (const std::string& name : names) wanted.emplace_back(folder / name, true);
    if (names.empty()) wanted.emplace_back(folder, false);
  }
  std::vector<RunRecord> runs;
  std::optional<Error> first;
  for (const auto& [named, of_comparison] : wanted) {
    const fs::path& folder = named;
    if (std::ranges::any_of(runs, [&](const RunRecord& run) {
          std::error_code error;
          return fs::equivalent(run.folder, folder, error);
        })) {
      left_out.push_back(folder.string() + ": was named twice");
      continue;
    }
    try {
      runs.push_back(read_run(folder));
      runs.back().of_comparison = of_comparison;
    } catch (const Error& error) {
      if (!first) first = error;
      left_out.push_back(error.what());
    }
  }
  if (runs.empty() && first) throw *first;
  name_runs(runs);
  return runs;
}

std::vector<std::string> measures_of(const std::vector<RunRecord>& runs) {
  constexpr std::string_view kOthers[] = {
      "step", "time", "epoch", "items", "train_seconds", "train_flops", "evaluations_since_best"};
  std::vector<std::string> names;
  for (const RunRecord& run : runs)
    for (const nlohmann::json& event : run.eval)
      for (const auto& [key, value] : event.items())
        if (value.is_number() && std::ranges::count(kOthers, key) == 0 &&
            std::ranges::count(names, key) == 0)
          names.push_back(key);
  std::stable_partition(names.begin(), names.end(),
                        [](const std::string& name) { return name == "loss"; });
  return names;
}

double phase_seconds(const RunRecord& run, const std::string& phase) {
  if (!run.end.is_null()) return number(member(run.end, "totals"), phase + "_seconds");
  // Probes are on few steps, which may not be those that were logged.
  if (phase == "probe" && std::ssize(run.train) < run.steps()) return kUnknown;
  double sum = 0;
  for (const nlohmann::json& step : run.train) sum += number(member(step, "seconds"), phase);
  return sum / static_cast<double>(run.train.size()) * static_cast<double>(run.steps());
}

const RunRecord* exact_twin(const RunRecord& run, const std::vector<RunRecord>& runs) {
  const auto is_comparable = [](const RunRecord& one) {
    return one.config.is_object() && !one.has_moved;
  };
  if (!run.samples() || !is_comparable(run)) return nullptr;
  const RunRecord* twin = nullptr;
  for (const RunRecord& other : runs) {
    if (!other.is_exact() || !is_comparable(other) || !std::isfinite(other.train_seconds()) ||
        !is_same_machine(other.start, run.start) || shared_settings(other) != shared_settings(run))
      continue;
    if (other.steps() == run.steps()) return &other;
    if (!twin) twin = &other;
  }
  return twin;
}

double time_saved(const RunRecord& run, const RunRecord* twin) {
  if (twin != nullptr && twin->steps() == run.steps())
    return 1 - run.train_seconds() / twin->train_seconds();
  return run.last_number("time_saved");
}

}  // namespace vcas
