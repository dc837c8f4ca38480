#include "data/tokenizer.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/nearest_name.h"
#include "data/byte_bpe.h"
#include "data/wordpiece.h"

namespace vcas {

std::int32_t Tokenizer::id(std::string_view token) const {
  const std::int32_t found = find(token);
  if (found >= 0) return found;
  std::vector<std::string> tokens;
  tokens.reserve(size());
  for (std::int32_t i = 0; i < size(); ++i) tokens.emplace_back(this->token(i));
  throw Error(ExitCode::kBadData, fmt::format("{}: no token \"{}\"", name(), token),
              did_you_mean(token, tokens));
}

std::int32_t Tokenizer::separator() const {
  const std::int32_t found = find_separator();
  if (found < 0)
    throw Error(
        ExitCode::kBadData, fmt::format("{}: no token to stand between documents", name()),
        fmt::format("vcas vocab learns a vocabulary that has one: {} of bytes, [SEP] of words",
                    kEndOfText));
  return found;
}

void Tokenizer::check_text(std::string_view text) {
  if (const auto bad = first_invalid_utf8(text))
    throw Error(ExitCode::kBadData,
                fmt::format("text to tokenize: invalid UTF-8 at byte {} ({:#04x})", *bad,
                            static_cast<unsigned char>(text[*bad])));
}

std::unique_ptr<Tokenizer> read_tokenizer(const std::filesystem::path& path, bool lower_case) {
  if (is_bpe(path)) return std::make_unique<ByteBpe>(path);
  return std::make_unique<WordPiece>(path, lower_case);
}

}  // namespace vcas
