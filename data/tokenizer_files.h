// The files of a tokenizer as transformers has them: BertTokenizer reads the first three,
// BertTokenizerFast the last.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "data/wordpiece.h"

namespace vcas {

// vocab.txt, tokenizer_config.json, special_tokens_map.json and tokenizer.json by name. A WordPiece
// of their folder has the same fingerprint. `max_length`: most tokens of an item.
std::map<std::string, std::string> tokenizer_files(const WordPiece& tokenizer,
                                                   std::int64_t max_length);

}  // namespace vcas
