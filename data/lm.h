// Causal language modelling (Radford et al., "GPT-2", 2019) on plain text.
// Documents are tokenised and joined with the tokenizer's separator, then cut into items of equal
// length. Each token of an item is to predict the next one.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "data/corpus.h"

namespace vcas {

class LmDataset final : public CorpusDataset {
 public:
  // The last token of `tokens`, two or more, predicts none. Each item has `item_rows` of the
  // others; the last may have fewer.
  LmDataset(TokenStream tokens, std::int64_t item_rows)
      : CorpusDataset(std::move(tokens), item_rows, 1) {}

  // All rows are masked positions, and their labels the tokens behind them.
  void append(std::int64_t index, const ItemDraw& draw, Batch& out) const override;
};

// `max_length`: tokens of an item. Throws as read_corpus does, and kBadData for a single token.
// kBadConfig: whole files, and a tokenizer that makes other tokens of their parts.
std::unique_ptr<LmDataset> load_lm(const CorpusOptions& options, std::int64_t max_length,
                                   const Tokenizer& tokenizer);

}  // namespace vcas
