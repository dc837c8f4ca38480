// Masked language modelling (Devlin et al., "BERT", 2019) on plain text: documents are tokenised,
// joined with [SEP] between them and cut into items of equal length, [CLS] ... [SEP]. In every
// epoch each item is masked anew: 15 % of its tokens are to be predicted, and of those 80 % become
// [MASK], 10 % a random token, 10 % stay.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/token_cache.h"
#include "data/wordpiece.h"

namespace vcas {

struct MlmOptions {
  // Plain or compressed, each line a document; or tables (.tsv, .csv, .jsonl, .json) with the
  // column `text_field`.
  std::vector<std::filesystem::path> files = {};
  std::string text_field = "text";
  bool header = true;             // of tables; false: columns are numbers, from 0
  std::int64_t max_length = 128;  // tokens of an item
  double mask_probability = 0.15;
  bool whole_words = false;  // a word's pieces are masked together
  bool cache = true;
};

class MlmDataset final : public Dataset {
 public:
  // What `masking` decides must fit the tokenizer that made `content`.
  struct Masking {
    double probability = 0.15;
    std::int32_t mask = 0;             // the id of [MASK]
    std::int32_t separator = 0;        // the id of [SEP], never masked
    std::int32_t vocabulary = 0;       // random tokens are below it
    std::vector<bool> continues = {};  // [vocabulary] the token goes on with a word; empty: each
                                       // token is masked by itself
  };
  MlmDataset(TokenContent content, Masking masking);

  std::int64_t size() const override { return std::ssize(content_.offsets) - 1; }
  std::vector<std::int64_t> item_shape() const override;
  const std::vector<std::string>& class_names() const override { return content_.class_names; }
  std::int32_t label(std::int64_t) const override { return -1; }
  // Masked positions depend on (draw.seed, draw.epoch, index) alone.
  void append(std::int64_t index, const ItemDraw& draw, Batch& out) const override;
  // Masked tokens of an item of `rows`: a fixed number, so that memory can be planned. Whole words
  // may leave a few of them out.
  std::int64_t masked_count(std::int64_t rows) const;

 private:
  TokenContent content_;
  Masking masking_;
};

// The last, shorter item is kept. Missing files: kNoInput; no text in them: kBadData.
std::unique_ptr<MlmDataset> load_mlm(const MlmOptions& options, const WordPiece& tokenizer);

}  // namespace vcas
