// Kinds of data. A kind stands in one source file: its settings, its checks, how it is read, and
// what the program must know about it. CONTRIBUTING.md shows how to add one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/part.h"
#include "data/augment.h"
#include "data/dataset.h"
#include "data/image_files.h"
#include "data/tokenizer.h"

namespace vcas {

struct DataOptions;
struct ImageSettings;
struct TokenSettings;

enum class LabelKind { kAny, kClasses, kNumbers, kMaskedWords, kNextWords };

// What the settings alone say of the items.
struct DataFacts {
  bool text = false;                       // token ids; else images or vectors
  LabelKind labels = LabelKind::kClasses;  // kAny: classes or numbers, as the model learns
  std::string task = {};                   // whose labels, for messages; empty: data.type
  std::int64_t max_length = 0;             // tokens at which texts are cut; 0: they are not
  bool needs_vocabulary = false;           // no setting names the files of the tokenizer
  bool needs_size = false;                 // images differ in size, and data.image.size is 0
  bool has_class_folders = false;          // a run writes their numbers into class_to_idx.json
  bool is_predictable = false;             // open_unlabelled reads more items
  bool is_made_up = false;                 // no file is read
};

// How data are opened.
struct DataRequest {
  std::filesystem::path folder = {};
  Split split = Split::kTrain;
  std::uint64_t seed = 0;
  bool skip_bad_rows = false;
  bool learns_numbers = false;                  // the model's labels are numbers
  std::vector<std::string> known_classes = {};  // of the training data, where they have been read
  const Tokenizer* tokenizer = nullptr;         // of texts
  ImageTransformOptions transform = {};         // of images
  std::optional<ImageCheck> check = {};         // how files of images are decoded beforehand
};

struct OpenedData {
  std::unique_ptr<Dataset> items;
  std::span<const std::int32_t> tokens = {};  // of texts, held by `items`; none: not looked at
  bool has_pairs = false;                     // texts are pairs
  std::int64_t most_masked = 0;               // masked positions of an item
  std::int64_t skipped_rows = 0;              // bad rows that were left out
  std::int64_t cut_rows = 0;                  // items that lost tokens, by DataFacts::max_length
  std::vector<std::string> skipped = {};      // what is wrong with images that were left out
  std::int64_t checked = 0;                   // images decoded beforehand
  std::vector<std::string> files = {};        // of each item; empty where they are rows of one file
  std::string note = {};                      // on what was read
};

// What a model says of unlabelled items. One of the two lists is empty.
struct Predictions {
  std::vector<float> numbers;            // [N]
  std::vector<std::int32_t> classes;     // [N]
  std::vector<std::string> class_names;  // in any order
};

// A benchmark whose server scores predictions of its test data.
class Benchmark {
 public:
  virtual ~Benchmark() = default;
  // `asked`, and the splits that are submitted with it. kUsage: there is no such split.
  virtual std::vector<std::string> splits(const DataRequest& request,
                                          const std::string& asked) const = 0;
  virtual std::unique_ptr<Dataset> open_split(const DataRequest& request,
                                              const std::string& split) const = 0;
  // Writes what the server takes into the folder.
  virtual void write(const std::filesystem::path& folder, const std::string& split,
                     const Predictions& predictions) const = 0;
};

class DataKind {
 public:
  virtual ~DataKind() = default;

  virtual std::string summary() const = 0;  // what it reads, for the help of data.type
  virtual DataFacts facts() const = 0;
  // What ranges cannot say. Keys are relative to the section `data`.
  virtual void check(const DataOptions& /*data*/, ConfigErrors& /*errors*/) const {}
  // A line for each setting whose value is not the default, and is not read: which, and why.
  virtual std::vector<std::string> idle_settings(const DataOptions& /*data*/) const { return {}; }

  virtual OpenedData open(const DataRequest& request) const = 0;
  // Evaluation data besides those of Split::kTest; without items where there are none.
  virtual OpenedData open_second_test(const DataRequest& /*request*/) const { return {}; }
  // Items to predict labels of, for a model of items of `item_shape`.
  virtual OpenedData open_unlabelled(const DataRequest& request,
                                     const std::vector<std::filesystem::path>& inputs,
                                     const std::vector<std::int64_t>& item_shape) const;
  virtual const Benchmark* benchmark() const { return nullptr; }

  // What evaluations measure unless the user says it; none: what suits the model's labels.
  virtual std::vector<std::string> measures() const { return {}; }
  // The class that f1 is about unless the user says it; empty: the second of two.
  virtual std::string positive_class() const { return {}; }
  // Names of the classes in the order that the user gives; none: as the data has them.
  virtual std::vector<std::string> given_classes() const { return {}; }

  // Null of items that are no texts. `pretrained`: a folder that may have the tokenizer.
  virtual std::unique_ptr<Tokenizer> make_tokenizer(
      const std::filesystem::path& /*pretrained*/) const {
    return nullptr;
  }
  // Null where no file says how texts become tokens.
  virtual TokenSettings* tokens() { return nullptr; }
  // Null unless items are images.
  virtual const ImageSettings* images() const { return nullptr; }
  virtual AugmentOptions augment() const { return {}; }
};

struct DataOptions {
  Part<DataKind> kind{"fashion_mnist", "What is read."};
  std::string folder;
  std::int64_t limit = 0;
  std::int64_t eval_limit = 0;
  double validation_share = 0;
  bool skip_bad_rows = false;
  int threads = 1;

  void fields(Setting& v);
  void validate(ConfigErrors& errors) const { kind->check(*this, errors); }

  // Reports a folder that is not named. `example`: files in it.
  void check_folder(const char* example, ConfigErrors& errors) const;
};

}  // namespace vcas
