// The data of a run: what its configuration names, read and made ready for a model.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/glue.h"
#include "data/image_transform.h"
#include "data/wordpiece.h"
#include "models/weights_io.h"
#include "tools/run_config.h"

namespace vcas {

// How the graph must be planned for batches of some items.
struct BatchLimits {
  std::int64_t tokens = 0;  // most rows of an item of text; 0: no text
  std::int64_t masked = 0;  // most masked positions of an item
};

// What the data of a model decides about it.
struct ModelFacts {
  std::vector<std::int64_t> item_shape;    // of images and vectors; none of texts
  std::vector<std::string> class_names;    // in the model's order; none of a regression
  std::optional<HfImageProcessor> images;  // how images become values; none of others
};

struct RunData {
  std::unique_ptr<WordPiece> tokenizer;  // of texts, else null
  std::unique_ptr<Dataset> train, test;
  std::unique_ptr<Dataset> mismatched;  // MNLI's second test set, where it is there; else null
  // Measures of an evaluation, the first of which says what the best checkpoint is: "accuracy",
  // "f1", "matthews", "pearson", "spearman".
  std::vector<std::string> metrics = {"accuracy"};
  std::int32_t positive = 1;          // the class that "f1" is about
  BatchLimits limits;                 // of both splits
  std::int64_t skipped_rows = 0;      // bad rows and images left out of both splits
  std::int64_t checked_images = 0;    // decoded before anything else
  std::vector<std::string> notes;     // on what was read
  std::vector<std::string> warnings;  // of what may be a mistake

  // With `check_images`, or with data.skip_bad_rows, all files of images are decoded.
  explicit RunData(const RunConfig& config, bool check_images = false);
  // Test data alone, for a model that was trained.
  RunData(const RunConfig& config, std::unique_ptr<WordPiece> tokenizer, const ModelFacts& trained);

  ModelFacts facts() const;     // of the training data
  void print_warnings() const;  // to stderr
  // File -> hash of all that was read: a run that goes on must find the same.
  std::map<std::string, std::string> fingerprints() const;

 private:
  std::unique_ptr<Dataset> load(const RunConfig& config, Split split,
                                const std::vector<std::string>& known_classes);
  void load_mismatched(const RunConfig& config, const std::vector<std::string>& names);
  std::unique_ptr<Dataset> in_order_of(const RunConfig& config, std::unique_ptr<Dataset> items,
                                       const std::vector<std::string>& names);
  void look_at_tokens(const RunConfig& config, const TokenContent& content);
  void choose_metrics(const RunConfig& config);

  ImageTransformOptions transform_;  // of images
  bool check_images_ = false;
};

// "train", "dev", "dev_matched" (the same, of MNLI), "dev_mismatched", "test", "test_mismatched" or
// "diagnostic"; kUsage for another name.
GlueSplit glue_split(const std::string& name);
std::unique_ptr<TextDataset> load_glue_split(const RunConfig& config, GlueSplit split,
                                             const WordPiece& tokenizer);

// Null of data without texts.
std::unique_ptr<WordPiece> load_tokenizer(const RunConfig& config);

// Items to predict labels of.
struct Unlabelled {
  std::unique_ptr<Dataset> items;
  std::vector<std::string> files = {};    // of each item; empty where they are rows of one file
  std::vector<std::string> skipped = {};  // what is wrong with those that were left out
};

// Texts or pairs in the columns that `config` trains on.
Unlabelled load_unlabelled_texts(const RunConfig& config, const WordPiece& tokenizer,
                                 const std::filesystem::path& file);

}  // namespace vcas
