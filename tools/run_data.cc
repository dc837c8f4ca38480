#include "tools/run_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "core/safetensors.h"
#include "data/cifar.h"
#include "data/glue.h"
#include "data/idx.h"
#include "data/mlm.h"
#include "data/synthetic.h"
#include "data/text_dataset.h"
#include "data/wordnet.h"
#include "models/weights_io.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

std::unique_ptr<Dataset> load_images(const RunConfig& config, Split split) {
  const DataOptions& data = config.data;
  if (data.type == "synthetic") {
    const SyntheticData& sizes = data.synthetic;
    const bool train = split == Split::kTrain;
    return make_synthetic({.items = train ? sizes.items : sizes.eval_items,
                           .first_item = train ? 0 : sizes.items,
                           .classes = sizes.classes,
                           .shape = {sizes.shape.begin(), sizes.shape.end()},
                           .noise = sizes.noise,
                           .label_noise = sizes.label_noise,
                           .seed = config.seed});
  }
  if (data.type.starts_with("cifar")) {
    return load_cifar({.folder = data.folder,
                       .kind = data.type == "cifar10" ? CifarKind::kCifar10 : CifarKind::kCifar100,
                       .split = split});
  }
  IdxOptions options{.split = split};
  if (!data.folder.empty()) options.folder = data.folder;
  return load_idx(options);
}

std::unique_ptr<MlmDataset> load_masked(const RunConfig& config, Split split,
                                        const WordPiece& tokenizer) {
  const TextData& text = config.data.text;
  return load_mlm({.files = {split == Split::kTrain ? text.train_file : text.test_file},
                   .text_field = config.data.text_column(),
                   .header = text.header,
                   .max_length = text.max_length,
                   .mask_probability = text.mask_probability,
                   .whole_words = text.whole_words,
                   .cache = text.cache},
                  tokenizer);
}

std::unique_ptr<TextDataset> load_table(const RunConfig& config, const fs::path& file,
                                        bool labelled, const WordPiece& tokenizer) {
  const TextData& text = config.data.text;
  return load_text(
      {.file = file,
       .first = config.data.text_column(),
       .second = text.second,
       .label = labelled ? text.label : "",
       // Predictions have a line for each row.
       .table = {.header = text.header, .skip_bad_rows = labelled && text.skip_bad_rows},
       .items = {.regression = config.model.head == "regression",
                 .labels = text.labels,
                 .max_length = text.max_length},
       .cache = text.cache},
      tokenizer);
}

std::unique_ptr<TextDataset> load_texts(const RunConfig& config, Split split,
                                        const WordPiece& tokenizer) {
  const DataOptions& data = config.data;
  const TextData& text = data.text;
  const bool train = split == Split::kTrain;
  if (data.type == "glue")
    return load_glue_split(config, train ? GlueSplit::kTrain : glue_split(text.eval_split),
                           tokenizer);
  if (data.type == "wordnet") {
    WordNetOptions options{
        .task = text.task == "is_a" ? WordNetTask::kIsA : WordNetTask::kLexicographerFile,
        .split = split,
        .max_length = text.max_length,
        .cache = text.cache};
    if (!data.folder.empty()) options.folder = data.folder;
    return load_wordnet(options, tokenizer);
  }
  return load_table(config, train ? text.train_file : text.test_file, true, tokenizer);
}

// A head that was trained on classes in another order would start as if trained on wrong labels.
void adopt_label_order(const RunConfig& config, TextDataset& data) {
  if (config.model.pretrained.empty() || data.class_names().empty()) return;
  const HfFiles files = find_hf_files(config.model.pretrained);
  const std::vector<std::string> labels = read_hf_config(files.config).labels;
  if (labels.size() != data.class_names().size()) return;
  if (!SafetensorsFile(files.weights).find("classifier.weight")) return;
  data.use_label_order(labels, !config.data.text.labels.empty());
}

}  // namespace

RunData::RunData(const RunConfig& config) {
  const DataOptions& data = config.data;
  if (!data.is_text()) {
    train = load_images(config, Split::kTrain);
    test = load_images(config, Split::kTest);
  } else {
    tokenizer = std::make_unique<WordPiece>(data.text.vocabulary.empty()
                                                ? find_hf_files(config.model.pretrained).folder
                                                : fs::path(data.text.vocabulary),
                                            WordPieceOptions{.lower_case = data.text.lower_case});
    for (const Split split : {Split::kTrain, Split::kTest}) {
      std::unique_ptr<Dataset>& target = split == Split::kTrain ? train : test;
      if (data.type == "mlm") {
        auto masked = load_masked(config, split, *tokenizer);
        limits.masked = std::max(limits.masked, masked->masked_count(masked->item_shape()[0]));
        target = std::move(masked);
      } else {
        auto texts = load_texts(config, split, *tokenizer);
        adopt_label_order(config, *texts);
        skipped_rows += texts->content().skipped_rows;
        target = std::move(texts);
      }
      limits.tokens = std::max(limits.tokens, target->item_shape()[0]);
    }
    if (data.type == "glue") metrics = glue_task(data.text.task).metrics;
    if (data.type == "text" && config.model.head == "regression") metrics = {"pearson", "spearman"};
  }
  if (data.limit > train->size())
    throw Error(ExitCode::kBadConfig,
                fmt::format("data.limit is {}, but there are {} items to train on", data.limit,
                            train->size()),
                "data.limit=0 takes all");
}

GlueSplit glue_split(const std::string& name) {
  static const std::map<std::string, GlueSplit> kSplits = {
      {"train", GlueSplit::kTrain},
      {"dev", GlueSplit::kDev},
      {"dev_mismatched", GlueSplit::kDevMismatched},
      {"test", GlueSplit::kTest},
      {"test_mismatched", GlueSplit::kTestMismatched}};
  const auto found = kSplits.find(name);
  if (found != kSplits.end()) return found->second;
  throw Error(ExitCode::kUsage, fmt::format("there is no split \"{}\"", name),
              "the splits are train, dev, dev_mismatched, test and test_mismatched");
}

std::unique_ptr<TextDataset> load_glue_split(const RunConfig& config, GlueSplit split,
                                             const WordPiece& tokenizer) {
  const TextData& text = config.data.text;
  return load_glue({.task = text.task,
                    .folder = config.data.folder,
                    .split = split,
                    .max_length = text.max_length,
                    .skip_bad_rows = text.skip_bad_rows,
                    .cache = text.cache},
                   tokenizer);
}

std::unique_ptr<Dataset> load_unlabelled(const RunConfig& config, const WordPiece& tokenizer,
                                         const fs::path& file) {
  RunConfig columns = config;
  if (config.data.type == "glue") {
    const GlueTask& task = glue_task(config.data.text.task);
    columns.data.text.first = task.first;
    columns.data.text.second = task.second;
    columns.data.text.header = true;
  }
  return load_table(columns, file, false, tokenizer);
}

}  // namespace vcas
