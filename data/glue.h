// The nine tasks of GLUE (Wang et al., "GLUE: A multi-task benchmark and analysis platform for
// natural language understanding", ICLR 2019): official files, labels and submissions. Columns and
// the order of the classes are those of Hugging Face's `datasets`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/text_dataset.h"

namespace vcas {

// The last three are MNLI's alone: other genres than those of the training data, and the
// benchmark's diagnostic pairs ("AX").
enum class GlueSplit { kTrain, kDev, kTest, kDevMismatched, kTestMismatched, kDiagnostic };

struct GlueTask {
  std::string name;    // "MNLI", as folders and submissions have it
  std::string first;   // columns
  std::string second;  // empty: single texts
  std::string label;
  std::vector<std::string> labels;   // class names by id; none: a regression
  std::vector<std::string> metrics;  // "accuracy", "f1", "matthews", "pearson", "spearman"
  bool label_words = false;          // a submission has the names of classes, not their numbers

  bool regression() const { return labels.empty(); }
};

const std::vector<GlueTask>& glue_tasks();

// By name, case and hyphens aside ("sst2" is "SST-2"); null where there is none.
const GlueTask* find_glue_task(std::string_view name);
// The same; unknown: kBadConfig with the nearest name.
const GlueTask& glue_task(std::string_view name);

struct GlueOptions {
  std::string task = "MNLI";
  std::filesystem::path folder = {};  // empty: glue/<task>, where tools/get_data puts it
  GlueSplit split = GlueSplit::kTrain;
  std::int64_t max_length = 128;
  bool skip_bad_rows = false;  // not of test splits; QQP's rows with too few or too many fields are
                               // left out in any case, and counted
  bool cache = true;
};

// "train", "dev", "dev_matched" (the same, of MNLI), "dev_mismatched", "test", "test_mismatched" or
// "diagnostic"; kUsage for another name.
GlueSplit glue_split(const std::string& name);

// Whether the task has the split and its file, plain or compressed, is there.
bool has_glue_split(const GlueTask& task, const std::filesystem::path& folder, GlueSplit split);

// train.tsv, dev.tsv, test.tsv, dev_matched.tsv and so on, plain or compressed. Test splits and
// diagnostic.tsv have no labels. A split that the task lacks: kBadConfig.
std::unique_ptr<TextDataset> load_glue(const GlueOptions& options, const Tokenizer& tokenizer);

// Writes what the benchmark's server takes, FOLDER/MNLI-m.tsv and so on: "index<TAB>prediction".
// `predictions` number the classes of `class_names`, which may come in any order.
void write_glue_submission(const std::filesystem::path& folder, const GlueTask& task,
                           GlueSplit split, std::span<const std::int32_t> predictions,
                           const std::vector<std::string>& class_names);
// For a regression. Values beyond the scale of 0 to 5 become its ends.
void write_glue_submission(const std::filesystem::path& folder, const GlueTask& task,
                           std::span<const float> predictions);

}  // namespace vcas
