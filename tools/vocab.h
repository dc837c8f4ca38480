// vcas vocab: text in, a vocab.txt out.
#pragma once

#include <cstdio>
#include <ostream>

#include "data/vocabulary_trainer.h"

namespace vcas {

// Reads the lines of `in` and writes the tokens, one a line. A line that is not UTF-8 or holds a
// NUL: kBadData with its number.
void print_vocabulary(const VocabularyOptions& options, std::FILE* in, std::ostream& out);

}  // namespace vcas
