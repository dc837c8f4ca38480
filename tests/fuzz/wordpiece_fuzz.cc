// The first byte chooses what the others are: a vocab.txt, a tokenizer.json or text. A vocabulary
// is kBadData or tokenizes; text is kBadData exactly where it is not UTF-8.
#include <cstdlib>
#include <optional>

#include "core/error.h"
#include "data/wordpiece.h"

namespace {

std::optional<vcas::WordPiece> parsed(bool json, std::string_view text) {
  try {
    return vcas::WordPiece(json ? vcas::parse_tokenizer_json(text, "fuzz")
                                : vcas::parse_vocab_txt(text, "fuzz", text.size() % 2 == 0));
  } catch (const vcas::Error& error) {
    if (error.code() != vcas::ExitCode::kBadData) std::abort();
    return std::nullopt;
  }
}

void tokenize(const vcas::WordPiece& tokenizer, std::string_view text) {
  std::vector<std::int32_t> ids;
  try {
    tokenizer.encode(text, ids);
    if (vcas::first_invalid_utf8(text)) std::abort();
  } catch (const vcas::Error& error) {
    if (error.code() != vcas::ExitCode::kBadData || !vcas::first_invalid_utf8(text)) std::abort();
  }
  for (const std::int32_t id : ids)
    if (id < 0 || id >= tokenizer.size()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] != 't') {
    if (const auto tokenizer = parsed(data[0] == 'j', text)) {
      tokenize(*tokenizer, "the un [MASK] caf\u00e9 \u91ce, [UNK]");
      for (std::int32_t id = 0; id < tokenizer->size(); ++id)
        tokenize(*tokenizer, tokenizer->token(id));
    }
    return 0;
  }
  static const std::string tokens =
      "[UNK]\n[MASK]\na\nb\n##a\n##b\nab\n##ba\nc\n\u00e9\n##\u00e9\n";
  static const vcas::WordPiece uncased(vcas::parse_vocab_txt(tokens, "fuzz", true));
  static const vcas::WordPiece cased(vcas::parse_vocab_txt(tokens, "fuzz", false));
  tokenize(uncased, text);
  tokenize(cased, text);
  return 0;
}
