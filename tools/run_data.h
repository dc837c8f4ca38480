// The data of a run: what its configuration names, read and made ready for a model.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/data_kind.h"
#include "data/image_transform.h"
#include "data/tokenizer.h"
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
  std::unique_ptr<Tokenizer> tokenizer;  // of texts, else null
  bool goes_on = false;                  // from a checkpoint, which has the weights
  std::unique_ptr<Dataset> train, test;  // after data.limit and data.eval_limit
  std::unique_ptr<Dataset> mismatched;   // MNLI's second test set, where it is there; else null
  // Measures of an evaluation: those of train.measures, else those that the task has.
  std::vector<std::string> measures;
  std::string best_measure;              // of measure_names, or "loss": chooses the best checkpoint
  std::optional<std::int32_t> positive;  // the class that "f1" is about; none: the mean over all
  BatchLimits limits;                    // of both splits
  std::int64_t checked_images = 0;       // decoded before anything else
  std::vector<std::string> left_out;     // images, by data.skip_bad_rows
  std::vector<std::string> notes;        // on what was read
  std::vector<std::string> warnings;     // of what was left out, and of what may be a mistake

  // With `check_images`, or with data.skip_bad_rows, all files of images are decoded.
  // `checkpoint`: its classes give their order; empty: those of the pretrained weights do.
  explicit RunData(const RunConfig& config, bool check_images = false,
                   const std::filesystem::path& checkpoint = {});
  // Test data alone, for a model that was trained.
  RunData(const RunConfig& config, std::unique_ptr<Tokenizer> tokenizer, const ModelFacts& trained);

  ModelFacts facts() const;  // of the training data
  // File -> hash of all that was read: a run that goes on must find the same.
  std::map<std::string, std::string> fingerprints() const;
  // FolderContents::hashes of all folders of images, one after the other; none: empty.
  std::string image_hashes() const;
  // What a checkpoint has of it. An image with other bytes is kBadData when its turn comes.
  // False if there were more or fewer images.
  bool expect_images(std::string_view hashes) const;

 private:
  std::vector<SourceFile> sources() const;
  std::map<std::string, std::shared_ptr<FolderContents>> folders() const;
  std::unique_ptr<Dataset> load(const RunConfig& config, Split split,
                                const std::vector<std::string>& known_classes);
  void take_notes(const RunConfig& config, const OpenedData& opened, const char* name);
  void load_mismatched(const RunConfig& config, const std::vector<std::string>& names);
  std::unique_ptr<Dataset> in_order_of(const RunConfig& config, std::unique_ptr<Dataset> items,
                                       const std::vector<std::string>& names);
  void look_at_classes(const RunConfig& config);
  void look_at_tokens(const RunConfig& config, const OpenedData& opened);
  void choose_measures(const RunConfig& config);

  ImageTransformOptions transform_;  // of images
  bool check_images_ = false;
};

// "2 classes: bad, good"
std::string classes_text(const std::vector<std::string>& names);

// Says how many texts have lost tokens. `name`: of the data, "training".
std::string cut_rows_text(const RunConfig& config, const OpenedData& opened, const char* name);

// To stderr.
void print_warnings(const std::vector<std::string>& warnings);

// How the fingerprint of a file begins, by XXH3. Those of folders and vocabularies begin otherwise.
constexpr const char* kFileHash = "xxh3:";

// Whether fingerprints of a file are of the same content.
// Checkpoints older than XXH3 have no word before the number. The file is then read again.
bool is_same_fingerprint(const std::string& file, const std::string& saved,
                         const std::string& found);

// Names of what is measured besides the loss: RunData::measures, and with a second test set
// "loss_mm", "accuracy_mm" and so on.
std::vector<std::string> measure_names(const RunData& data);

// A file of a checkpoint: RunData::image_hashes.
constexpr const char* kImageHashesFile = "images.hashes";

constexpr std::int64_t kTop = 5;  // classes: "top5" counts labels among so many first predictions

// Null of data without texts.
std::unique_ptr<Tokenizer> load_tokenizer(const RunConfig& config);

// Without known classes and transform.
DataRequest data_request(const RunConfig& config, Split split, const Tokenizer* tokenizer);

}  // namespace vcas
