// vcas vocab: text in, a vocabulary out.
#pragma once

#include "data/vocabulary_trainer.h"

namespace vcas {

// Reads the lines of standard input and prints the tokens of a WordPiece, one a line.
// A line that is not UTF-8 or holds a NUL: kBadData with its number.
void print_vocabulary(const VocabularyOptions& options);

// The same of a byte-level BPE with at most `size` tokens. It prints a tokenizer.json.
void print_byte_bpe(std::int64_t size);

}  // namespace vcas
