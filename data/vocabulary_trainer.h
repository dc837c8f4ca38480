// A WordPiece vocabulary learnt from text, for training from scratch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace vcas {

struct VocabularyOptions {
  std::int64_t size = 8000;
  bool lower_case = true;  // and without accents
};

// The tokens, in this order:
//   the special ones
//   the characters of the Basic Multilingual Plane in the text
//   pieces by byte-pair encoding (Sennrich, Haddow, Birch, ACL 2016)
// The most frequent pair of neighbouring pieces within words becomes a piece, again and again.
// The first in byte order wins a tie. Fewer than `size` tokens if no pair occurs twice.
// Deterministic. `next_line` gives the text, false at its end.
// kBadData: no text. kBadConfig: the special tokens and the characters alone exceed the size.
std::vector<std::string> train_vocabulary(const std::function<bool(std::string&)>& next_line,
                                          const VocabularyOptions& options);

}  // namespace vcas
