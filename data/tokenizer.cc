#include "data/tokenizer.h"

#include "data/wordpiece.h"

namespace vcas {

std::unique_ptr<Tokenizer> read_tokenizer(const std::filesystem::path& path, bool lower_case) {
  return std::make_unique<WordPiece>(path, WordPieceOptions{.lower_case = lower_case});
}

}  // namespace vcas
