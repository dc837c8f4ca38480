#include "data/glue.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "core/files.h"
#include "core/log.h"
#include "core/nearest_name.h"
#include "core/utf8.h"
#include "data/text_kind.h"

namespace vcas {
namespace {

std::string plain_name(std::string_view name) {
  std::string plain = ascii_lower(std::string(name));
  std::erase_if(plain, [](char letter) { return letter == '-' || letter == '_'; });
  return plain;
}

bool is_mismatched(GlueSplit split) {
  return split == GlueSplit::kDevMismatched || split == GlueSplit::kTestMismatched;
}

bool is_of_mnli(GlueSplit split) { return is_mismatched(split) || split == GlueSplit::kDiagnostic; }

bool is_test(GlueSplit split) {
  return split == GlueSplit::kTest || split == GlueSplit::kTestMismatched ||
         split == GlueSplit::kDiagnostic;
}

std::filesystem::path folder_of(const GlueTask& task, const std::filesystem::path& given) {
  return given.empty() ? std::filesystem::path("glue") / task.name : given;
}

std::string split_file(const GlueTask& task, GlueSplit split) {
  if (is_of_mnli(split) && task.name != "MNLI")
    throw Error(ExitCode::kBadConfig,
                fmt::format("{} has no {} split; only MNLI has", task.name,
                            is_mismatched(split) ? "mismatched" : "diagnostic"));
  if (split == GlueSplit::kDiagnostic) return "diagnostic.tsv";
  if (split == GlueSplit::kTrain) return "train.tsv";
  const std::string stem = is_test(split) ? "test" : "dev";
  if (task.name != "MNLI") return stem + ".tsv";
  return stem + (is_mismatched(split) ? "_mismatched.tsv" : "_matched.tsv");
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
  throw Error(
      ExitCode::kBadConfig,
      fmt::format("there is no GLUE task \"{}\"; the tasks are {}", name, fmt::join(names, ", ")),
      did_you_mean(name, names));
}

GlueSplit glue_split(const std::string& name) {
  static const std::map<std::string, GlueSplit> kSplits = {
      {"train", GlueSplit::kTrain},
      {"dev", GlueSplit::kDev},
      {"dev_matched", GlueSplit::kDev},
      {"dev_mismatched", GlueSplit::kDevMismatched},
      {"test", GlueSplit::kTest},
      {"diagnostic", GlueSplit::kDiagnostic},
      {"test_mismatched", GlueSplit::kTestMismatched}};
  const auto found = kSplits.find(name);
  if (found != kSplits.end()) return found->second;
  throw Error(ExitCode::kUsage, fmt::format("there is no split \"{}\"", name),
              "the splits are train, dev, dev_matched, dev_mismatched, test, test_mismatched and "
              "diagnostic");
}

bool has_glue_split(const GlueTask& task, const std::filesystem::path& folder, GlueSplit split) {
  if (is_of_mnli(split) && task.name != "MNLI") return false;
  return plain_or_compressed(folder_of(task, folder) / split_file(task, split)).has_value();
}

std::unique_ptr<TextDataset> load_glue(const GlueOptions& options, const Tokenizer& tokenizer) {
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
  if (name == "MNLI") name = is_mismatched(split) ? "MNLI-mm" : "MNLI-m";
  if (split == GlueSplit::kDiagnostic) name = "AX";
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

namespace {

class Glue final : public LabelledTextKind, public Benchmark {
 public:
  void fields(Setting& v) {
    Setting& text = v.section("text", kTextHelp);
    text.field("task", task_, "MNLI, SST-2, ...");
    text.field("eval_split", eval_split_,
               "What is evaluated on; dev of MNLI: both, matched and mismatched.",
               one_of({"dev", "dev_matched", "dev_mismatched", "train"}));
    add_text_fields(text);
  }

  std::string summary() const override { return "its tasks"; }
  DataFacts facts() const override {
    const GlueTask* task = find_glue_task(task_);
    if (!task) return text_facts(LabelKind::kAny, task_);
    return text_facts(task->regression() ? LabelKind::kNumbers : LabelKind::kClasses, task_);
  }
  void check(const DataOptions&, ConfigErrors& errors) const override {
    if (task_.empty())
      errors.add(
          {"text.task", "type"},
          "is missing: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE or WNLI; \"tools/get_data "
          "SST-2\" gets the files of SST-2");
  }
  std::vector<std::string> idle_settings(const DataOptions&) const override {
    return idle_columns();
  }

  OpenedData open(const DataRequest& request) const override {
    return opened(load(
        request, request.split == Split::kTrain ? GlueSplit::kTrain : glue_split(eval_split_)));
  }
  OpenedData open_second_test(const DataRequest& request) const override {
    if (eval_split_ != "dev" ||
        !has_glue_split(glue_task(task_), request.folder, GlueSplit::kDevMismatched))
      return {};
    return opened(load(request, GlueSplit::kDevMismatched));
  }
  OpenedData open_unlabelled(const DataRequest& request,
                             const std::vector<std::filesystem::path>& inputs,
                             const std::vector<std::int64_t>&) const override {
    const GlueTask& task = glue_task(task_);
    ColumnSettings columns = columns_;
    if (columns.first.empty()) columns.first = task.first;
    if (columns.second.empty()) columns.second = task.second;
    return opened(load_table(request, inputs.at(0), columns, {}));
  }
  const Benchmark* benchmark() const override { return this; }

  std::vector<std::string> measures() const override { return glue_task(task_).metrics; }
  std::string positive_class() const override {
    const GlueTask& task = glue_task(task_);
    return task.regression() ? "" : task.labels[1];
  }

  std::vector<std::string> splits(const DataRequest& request,
                                  const std::string& asked) const override {
    const GlueTask& task = glue_task(task_);
    std::vector<std::string> all = {asked};
    if (glue_split(asked) != GlueSplit::kTest) return all;
    const auto has = [&](GlueSplit split) { return has_glue_split(task, request.folder, split); };
    if (has(GlueSplit::kTestMismatched))
      all.emplace_back("test_mismatched");
    else if (task.name == "MNLI")
      log_warning("there is no test_mismatched.tsv for MNLI-mm.tsv");
    if (has(GlueSplit::kDiagnostic)) all.emplace_back("diagnostic");
    return all;
  }
  std::unique_ptr<Dataset> open_split(const DataRequest& request,
                                      const std::string& split) const override {
    return load(request, glue_split(split));
  }
  void write(const std::filesystem::path& folder, const std::string& split,
             const Predictions& predictions) const override {
    const GlueTask& task = glue_task(task_);
    if (task.regression())
      write_glue_submission(folder, task, predictions.numbers);
    else
      write_glue_submission(folder, task, glue_split(split), predictions.classes,
                            predictions.class_names);
  }

 private:
  std::unique_ptr<TextDataset> load(const DataRequest& request, GlueSplit split) const {
    return load_glue({.task = task_,
                      .folder = request.folder,
                      .split = split,
                      .max_length = tokens_.max_length,
                      .skip_bad_rows = request.skip_bad_rows,
                      .cache = tokens_.cache},
                     *request.tokenizer);
  }

  std::string task_;
  std::string eval_split_ = "dev";
};
VCAS_REGISTER_PART(DataKind, "glue", Glue);

}  // namespace

}  // namespace vcas
