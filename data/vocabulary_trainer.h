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

// The special tokens, the characters of the text (of the Basic Multilingual Plane), then the pieces
// that byte-pair encoding (Sennrich, Haddow, Birch, ACL 2016) finds: the most frequent pair of
// neighbouring pieces within words becomes a piece, again and again; of equally frequent pairs the
// first in byte order. Fewer than `size` tokens when no pair occurs twice. Deterministic.
// `next_line` gives the text, false at its end. kBadData: no text; kBadConfig: the characters alone
// exceed the size.
std::vector<std::string> train_vocabulary(const std::function<bool(std::string&)>& next_line,
                                          const VocabularyOptions& options);

}  // namespace vcas
