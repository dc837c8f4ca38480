#include "data/glue.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/files.h"
#include "core/nearest_name.h"

namespace vcas {
namespace {

std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char letter : name)
    if (letter != '-' && letter != '_')
      plain += static_cast<char>(letter >= 'A' && letter <= 'Z' ? letter - 'A' + 'a' : letter);
  return plain;
}

bool is_of_mnli(GlueSplit split) {
  return split == GlueSplit::kDevMismatched || split == GlueSplit::kTestMismatched ||
         split == GlueSplit::kDiagnostic;
}

bool is_test(GlueSplit split) {
  return split == GlueSplit::kTest || split == GlueSplit::kTestMismatched ||
         split == GlueSplit::kDiagnostic;
}

std::filesystem::path folder_of(const GlueTask& task, const std::filesystem::path& given) {
  return given.empty() ? std::filesystem::path("glue") / task.name : given;
}

std::string split_file(const GlueTask& task, GlueSplit split) {
  const bool mismatched = split == GlueSplit::kDevMismatched || split == GlueSplit::kTestMismatched;
  if (is_of_mnli(split) && task.name != "MNLI")
    throw Error(ExitCode::kBadConfig, fmt::format("{} has no {} split; only MNLI has", task.name,
                                                  mismatched ? "mismatched" : "diagnostic"));
  if (split == GlueSplit::kDiagnostic) return "diagnostic.tsv";
  if (split == GlueSplit::kTrain) return "train.tsv";
  const std::string stem = is_test(split) ? "test" : "dev";
  if (task.name != "MNLI") return stem + ".tsv";
  return stem + (mismatched ? "_mismatched.tsv" : "_matched.tsv");
}

void write_submission(const std::filesystem::path& folder, const std::string& name,
                      const std::vector<std::string>& predictions) {
  std::string text = "index\tprediction\n";
  for (std::size_t i = 0; i < predictions.size(); ++i)
    text += fmt::format("{}\t{}\n", i, predictions[i]);
  atomic_write(folder / (name + ".tsv"), text);
}

}  // namespace

const std::vector<GlueTask>& glue_tasks() {
  static const std::vector<GlueTask> tasks = {
      {"CoLA", "sentence", "", "label", {"unacceptable", "acceptable"}, {"matthews"}},
      {"SST-2", "sentence", "", "label", {"negative", "positive"}, {"accuracy"}},
      {"MRPC",
       "#1 String",
       "#2 String",
       "Quality",
       {"not_equivalent", "equivalent"},
       {"accuracy", "f1"}},
      {"STS-B", "sentence1", "sentence2", "score", {}, {"pearson", "spearman"}},
      {"QQP",
       "question1",
       "question2",
       "is_duplicate",
       {"not_duplicate", "duplicate"},
       {"accuracy", "f1"}},
      {"MNLI",
       "sentence1",
       "sentence2",
       "gold_label",
       {"entailment", "neutral", "contradiction"},
       {"accuracy"},
       true},
      {"QNLI",
       "question",
       "sentence",
       "label",
       {"entailment", "not_entailment"},
       {"accuracy"},
       true},
      {"RTE",
       "sentence1",
       "sentence2",
       "label",
       {"entailment", "not_entailment"},
       {"accuracy"},
       true},
      {"WNLI", "sentence1", "sentence2", "label", {"not_entailment", "entailment"}, {"accuracy"}},
  };
  return tasks;
}

const GlueTask* find_glue_task(std::string_view name) {
  for (const GlueTask& task : glue_tasks())
    if (plain_name(task.name) == plain_name(name)) return &task;
  return nullptr;
}

const GlueTask& glue_task(std::string_view name) {
  if (const GlueTask* task = find_glue_task(name)) return *task;
  std::vector<std::string> names;
  for (const GlueTask& task : glue_tasks()) names.push_back(task.name);
  const std::string nearest = nearest_name(name, names);
  throw Error(
      ExitCode::kBadConfig,
      fmt::format("there is no GLUE task \"{}\"; the tasks are {}", name, fmt::join(names, ", ")),
      nearest.empty() ? "" : fmt::format("did you mean \"{}\"?", nearest));
}

bool has_glue_split(const GlueTask& task, const std::filesystem::path& folder, GlueSplit split) {
  if (is_of_mnli(split) && task.name != "MNLI") return false;
  return plain_or_compressed(folder_of(task, folder) / split_file(task, split)).has_value();
}

std::unique_ptr<TextDataset> load_glue(const GlueOptions& options, const WordPiece& tokenizer) {
  const GlueTask& task = glue_task(options.task);
  const std::filesystem::path folder = folder_of(task, options.folder);
  const bool test = is_test(options.split);
  const std::string get_data = fmt::format("tools/get_data {} {}", task.name, folder.string());
  const bool headless = task.name == "CoLA" && !test;  // the one pair of files without header line
  return load_text(
      {.file = folder / split_file(task, options.split),
       .first = headless ? "3" : task.first,
       .second = task.second,
       .label = test       ? ""
                : headless ? "1"
                           : task.label,
       // A submission has a line for each row, and a blank line is none: rows have tabs.
       .table = {.format = TableFormat::kTsv,
                 .header = !headless,
                 .skip_bad_rows = !test && options.skip_bad_rows,
                 .skip_uneven_rows = !test && task.name == "QQP",
                 .column_hint = "is this the official file? " + get_data + " gets it"},
       .items = {.regression = task.regression(),
                 .labels = task.labels,
                 .skip_bad_labels = options.skip_bad_rows,
                 .max_length = options.max_length},
       .cache = options.cache,
       .missing_hint = get_data},
      tokenizer);
}

void write_glue_submission(const std::filesystem::path& folder, const GlueTask& task,
                           GlueSplit split, std::span<const std::int32_t> predictions,
                           const std::vector<std::string>& class_names) {
  const std::vector<std::int32_t> ids = match_labels(class_names, task.labels, true);
  std::vector<std::string> words;
  for (const std::int32_t prediction : predictions) {
    VCAS_CHECK(prediction >= 0 && prediction < std::ssize(ids), "a class that the data lacks");
    const std::int32_t id = ids[prediction];
    words.push_back(task.label_words ? task.labels[id] : std::to_string(id));
  }
  std::string name = task.name;
  if (name == "MNLI")
    name = split == GlueSplit::kDiagnostic                                             ? "AX"
           : split == GlueSplit::kTestMismatched || split == GlueSplit::kDevMismatched ? "MNLI-mm"
                                                                                       : "MNLI-m";
  write_submission(folder, name, words);
}

void write_glue_submission(const std::filesystem::path& folder, const GlueTask& task,
                           std::span<const float> predictions) {
  VCAS_CHECK(task.regression(), task.name + " has classes");
  std::vector<std::string> values;
  for (const float value : predictions)
    values.push_back(fmt::format("{:.3f}", std::clamp(value, 0.0f, 5.0f)));
  write_submission(folder, task.name, values);
}

}  // namespace vcas
