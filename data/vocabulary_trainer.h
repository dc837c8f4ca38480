// Vocabularies learnt from text, for training from scratch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/byte_bpe.h"

namespace vcas {

struct VocabularyOptions {
  std::int64_t size = 8000;
  bool lower_case = true;  // and without accents
};

// The tokens of a WordPiece, in this order:
//   the special ones
//   the characters of the text
//   pieces by byte-pair encoding (Sennrich, Haddow, Birch, ACL 2016)
// The most frequent pair of neighbouring pieces within words becomes a piece, again and again.
// The first in byte order wins a tie. Fewer than `size` tokens if no pair occurs twice.
// Deterministic. `next_line` gives the text, false at its end.
// kBadData: no text. kBadConfig: the special tokens and the characters alone exceed the size.
std::vector<std::string> train_vocabulary(const std::function<bool(std::string&)>& next_line,
                                          const VocabularyOptions& options);

// A byte-level BPE with these tokens: the 256 bytes, those of the merges, <|endoftext|>.
// Merges are learnt as above, in words of `first_word`. `size` counts all tokens.
// `next_line` gives lines with their line ends, which are learnt too.
// Deterministic. kBadData: no text. kBadConfig: a size below 257.
BpeVocabulary train_byte_bpe(const std::function<bool(std::string&)>& next_line, std::int64_t size);

}  // namespace vcas
