// Texts and pairs of texts as token ids: [CLS] a [SEP], or [CLS] a [SEP] b [SEP].
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/content_hash.h"
#include "data/dataset.h"
#include "data/text_table.h"
#include "data/token_cache.h"
#include "data/tokenizer.h"

namespace vcas {

class TextDataset final : public Dataset {
 public:
  explicit TextDataset(TokenContent content);

  std::int64_t size() const override { return std::ssize(content_.offsets) - 1; }
  std::vector<std::int64_t> item_shape() const override { return {longest_}; }
  // A regression has none.
  const std::vector<std::string>& class_names() const override { return content_.class_names; }
  std::int32_t label(std::int64_t index) const override {
    return content_.labels.empty() ? -1 : content_.labels[index];
  }
  std::int64_t rows(std::int64_t index) const override {
    return content_.offsets[index + 1] - content_.offsets[index];
  }
  void append(std::int64_t index, const ItemDraw& draw, Batch& out) const override;

  const TokenContent& content() const { return content_; }

 private:
  TokenContent content_;
  std::int64_t longest_ = 0;
};

// The number in the model of each class of the data: matched by name, case aside.
// Throws kBadConfig if the names differ. There is one exception, `names_are_given`: the user named
// the data's classes.
// A model that has only numbers or LABEL_0, LABEL_1 and so on then takes them in order.
// Taking unnamed classes in order brings a good model to 5 % accuracy on MNLI.
std::vector<std::int32_t> match_labels(const std::vector<std::string>& data_names,
                                       const std::vector<std::string>& model_names,
                                       bool names_are_given);

// How rows become items.
struct ItemOptions {
  bool pairs = false;
  bool labelled = true;
  bool regression = false;          // labels are numbers
  std::vector<std::string> labels;  // class names in the order of their ids; empty: those found, in
                                    // numeric or text order, case aside
  bool skip_bad_labels = false;     // leave rows out whose label is none, and count them
  bool label_numbers = true;  // a file may use ids in place of `labels`, unless a name is a number
  std::int64_t max_length = 128;  // tokens of an item; the longer text of a pair is cut first

  void add_to(ContentHash& hash) const;
};

struct TextRow {
  std::string first, second, label;
};

class TextRows {
 public:
  virtual ~TextRows() = default;
  virtual bool next(TextRow& row) = 0;
  virtual std::string place() const = 0;  // of the row, for messages
  virtual std::int64_t skipped() const { return 0; }
};

// kBadData with the place: an unknown label, fewer than two classes, no rows.
TokenContent tokenise_rows(TextRows& rows, const Tokenizer& tokenizer, const ItemOptions& options);

struct TextOptions {
  std::filesystem::path file = {};  // plain or compressed
  std::string first = "sentence";
  std::string second = {};      // empty: single texts
  std::string label = "label";  // empty: without labels
  TableOptions table = {};
  ItemOptions items = {};  // pairs and labelled follow from the columns
  bool cache = true;
  std::string missing_hint = {};
};

std::unique_ptr<TextDataset> load_text(const TextOptions& options, const Tokenizer& tokenizer);

}  // namespace vcas
