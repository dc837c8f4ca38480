// Masked language modelling (Devlin et al., "BERT", 2019) on plain text.
// Documents are tokenised and joined with [SEP], then cut into items [CLS] ... [SEP] of equal
// length.
// Each epoch masks 15 % of an item's tokens anew: these are to be predicted.
// From these 80 % become [MASK], 10 % a random token, and 10 % stay.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/corpus.h"

namespace vcas {

struct MlmOptions {
  CorpusOptions corpus = {};
  std::int64_t max_length = 128;  // tokens of an item
  double mask_probability = 0.15;
  bool whole_words = false;  // a word's pieces are masked together
};

class MlmDataset final : public CorpusDataset {
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

  // Masked positions depend on (draw.seed, draw.epoch, index) alone.
  void append(std::int64_t index, const ItemDraw& draw, Batch& out) const override;
  // Separators are never masked. Whole words may leave a few out. Where no word fits, one is masked
  // in part.
  std::int64_t masked_count(std::int64_t rows) const override;
  bool can_mask() const;  // a token of any item

 private:
  struct Word {
    std::int64_t begin, end;  // rows of the item
  };
  std::int64_t share_of(std::int64_t maskable) const;  // masked ones of so many tokens
  std::vector<Word> maskable_words(std::span<const std::int32_t> tokens) const;

  Masking masking_;
};

// The last, shorter item is kept. Throws as read_corpus does, and kBadConfig for bad options.
// kBadData: no token can be masked.
std::unique_ptr<MlmDataset> load_mlm(const MlmOptions& options, const Tokenizer& tokenizer);

}  // namespace vcas
