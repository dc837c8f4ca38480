// A tokenizer of a dozen words, for tests of what is done with tokens.
#pragma once

#include <string>
#include <vector>

#include "data/wordpiece.h"

namespace vcas {

enum TinyToken : std::int32_t { kPad, kUnk, kCls, kSep, kMask, kA, kB, kC, kD, kE, kIng, kS };

inline WordPiece tiny_tokenizer() {
  return WordPiece(Vocabulary{.name = "tiny",
                              .tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b",
                                         "c", "d", "e", "##ing", "##s"},
                              .unknown = kUnk});
}

}  // namespace vcas
