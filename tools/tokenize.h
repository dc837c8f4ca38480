// vcas tokenize: lines of text in, lines of token ids out.
#pragma once

#include <filesystem>

namespace vcas {

struct TokenizeRequest {
  std::filesystem::path vocabulary;  // as `read_tokenizer` takes it
  bool cased = false;
  bool special = false;  // [CLS] before and [SEP] after each line
};

// Each line of standard input becomes one of standard output: its ids, separated by spaces.
// A line that is not UTF-8 is kBadData with its number; --cased against the vocabulary's own word
// is kUsage.
void tokenize_lines(const TokenizeRequest& request);

}  // namespace vcas
