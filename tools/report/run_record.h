// What a run has left in its folder, as a report reads it.
#pragma once

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace vcas {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

struct RunRecord {
  std::filesystem::path folder;
  std::string name;            // unlike that of any other run of the report
  bool of_comparison = false;  // it came with the folder of its comparison
  nlohmann::json config;       // all settings; null if they are not known
  nlohmann::json start, end;   // the first and the last event of that name, null without one
  // The events, in their order. Their "time" counts from their "date", that of the last start.
  std::vector<nlohmann::json> train, eval, variance;
  std::vector<std::string> warnings;  // of the program, each once
  std::vector<std::string> gaps;      // what is missing or was left out: "the run has no end ..."
  bool has_moved = false;             // a later start had another machine, threads or ranks

  // The last step that is known.
  std::int64_t steps() const;
  // The number of the end, or of the last logged step where there is no end; NaN if not known.
  double last_number(const std::string& key) const;
  double train_seconds() const { return last_number("train_seconds"); }
  bool samples() const;     // by its settings: whether its steps may drop something
  bool has_ratios() const;  // whether it is of VCAS, which probes
  bool is_exact() const;    // whether all steps were: the first ones of a fork may not have been
};

// The runs of these folders; that of a comparison stands for its runs.
// A run that cannot be read is left out, which `left_out` then says.
// Throws kNoInput where a folder is not there, and why the first run was left out if all were.
std::vector<RunRecord> read_runs(const std::vector<std::filesystem::path>& folders,
                                 std::vector<std::string>& left_out);

// Metrics may come from any program: what is not there, or not of its type, is null, NaN or empty.
const nlohmann::json& member(const nlohmann::json& object, std::string_view key);
double number(const nlohmann::json& object, const std::string& key);
std::vector<double> numbers(const nlohmann::json& object, const std::string& key);
std::string text(const nlohmann::json& object, const std::string& key);
std::vector<double> column(const std::vector<nlohmann::json>& events, const std::string& key);

double mean(const std::vector<double>& values);  // NaN of none

// Names of what evaluations measured, of all runs: "loss", "accuracy" and so on.
std::vector<std::string> measures_of(const std::vector<RunRecord>& runs);

// The seconds of a phase over all steps: "forward", "backward", "probe", "optimizer", "data",
// "eval" or "checkpoint". Without an end the first four are estimated from the steps that were
// logged. NaN: not known. Probes are not, unless each step was logged.
double phase_seconds(const RunRecord& run, const std::string& phase);

// The exact run among them with the settings and the machine of this one; null if none.
const RunRecord* exact_twin(const RunRecord& run, const std::vector<RunRecord>& runs);

// Share of the seconds that the run has saved: against its twin, else by its own exact steps.
double time_saved(const RunRecord& run, const RunRecord* twin);

}  // namespace vcas
