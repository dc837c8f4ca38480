// Masked language modelling (Devlin et al., "BERT", 2019) on plain text.
// Documents are tokenised and joined with [SEP], then cut into items [CLS] ... [SEP] of equal
// length.
// Each epoch masks 15 % of an item's tokens anew: these are to be predicted.
// From these 80 % become [MASK], 10 % a random token, and 10 % stay.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "data/dataset.h"

namespace vcas {

struct MlmOptions {
  CorpusOptions corpus = {};
  std::int64_t max_length = 128;  // tokens of an item
  double mask_probability = 0.15;
  bool whole_words = false;  // a word's pieces are masked together
};

class MlmDataset final : public Dataset {
 public:
  // `masking` must fit the tokenizer that made the tokens.
  struct Masking {
    double probability = 0.15;
    std::int32_t mask = 0;             // the id of [MASK]
    std::int32_t separator = 0;        // the id of [SEP], never masked
    std::int32_t vocabulary = 0;       // random tokens are below it
    std::vector<bool> continues = {};  // [vocabulary] the token goes on with a word; empty: each
                                       // token is masked by itself
  };
  // The tokens of all items. Each has `item_rows` of them; the last may have fewer.
  MlmDataset(TokenStream tokens, std::int64_t item_rows, Masking masking);

  std::int64_t size() const override;
  std::vector<std::int64_t> item_shape() const override;
  const std::vector<std::string>& class_names() const override { return class_names_; }
  std::int32_t label(std::int64_t) const override { return -1; }
  // Masked positions depend on (draw.seed, draw.epoch, index) alone.
  void append(std::int64_t index, const ItemDraw& draw, Batch& out) const override;
  const TokenStream& stream() const { return stream_; }
  // Most masked tokens of an item of `rows`, so memory can be planned. Separators are never masked.
  // Whole words may leave a few out. Where no word fits, one is masked in part.
  std::int64_t masked_count(std::int64_t rows) const;
  bool can_mask() const;  // a token of any item

 private:
  struct Word {
    std::int64_t begin, end;  // rows of the item
  };
  std::int64_t share_of(std::int64_t maskable) const;  // masked ones of so many tokens
  std::span<const std::int32_t> item_tokens(std::int64_t index) const;
  std::vector<Word> maskable_words(std::span<const std::int32_t> tokens) const;

  TokenStream stream_;
  std::int64_t item_rows_;
  Masking masking_;
  std::vector<std::string> class_names_;  // none
};

// The last, shorter item is kept. Throws as read_corpus does, and kBadConfig for bad options.
// kBadData: no token can be masked.
std::unique_ptr<MlmDataset> load_mlm(const MlmOptions& options, const Tokenizer& tokenizer);

}  // namespace vcas
