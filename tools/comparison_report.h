// The numbers of a comparison: of each run, over seeds, against the base; and how they are printed.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tools/session.h"

namespace vcas {

// Whether the run, as compare.json has it, has numbers.
bool has_numbers(const nlohmann::ordered_json& run);

// What a run cost, and its losses. Null for what there is none of yet.
// FLOPs are counted, seconds are measured.
nlohmann::ordered_json run_numbers(const Session& session,
                                   const std::optional<TestResult>& evaluation,
                                   const RunData& data);

// Adds what the metrics.jsonl of a run has up to its "steps" to its numbers:
// "evaluations", and in "best" the best value of each measure among them;
// "added_variance" of "items" and "rows": sums of V_act and of V_w over that of V_s.
// It has "forward" of V_f where a controller measured that SampleF added any.
// They are over the probes of the second half. It is missing where none measured V_s.
void add_measurements(nlohmann::ordered_json& run, const std::filesystem::path& folder);

// `comparison` is compare.json: "base", "seeds", "to_accuracy", "variants" and "runs".
// Adds "saved" and "until" to each run that has numbers, against the base at the same seed.
// "until" tells when accuracy "to_accuracy" was reached. Without one its measure is that which
// chooses the best checkpoint, and its value that of the base's last evaluation.
// "saved" stands at the top too where there are two runs.
// Adds "summary": of each variant the mean and standard deviation of every number over seeds.
// There "minus_base" has the mean of the differences and its standard error, paired by seed.
void add_summary(nlohmann::ordered_json& comparison);

// The summary with a column for each variant. Spreads are shown of several seeds only.
std::string comparison_text(const nlohmann::ordered_json& comparison);
std::string comparison_markdown(const nlohmann::ordered_json& comparison);
// A line for each run, a column for each number.
std::string comparison_csv(const nlohmann::ordered_json& comparison);

}  // namespace vcas
