// The first byte chooses what the others are: a vocab.txt, a tokenizer.json or text. A vocabulary
// is kBadData or tokenizes; text is kBadData exactly where it is not UTF-8.
#include "data/wordpiece.h"
#include "tests/fuzz/encoded.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] != 't') {
    std::optional<vcas::WordPiece> tokenizer;
    fuzz_read(
        [&] {
          tokenizer.emplace(data[0] == 'j'
                                ? vcas::parse_tokenizer_json(text, "fuzz")
                                : vcas::parse_vocab_txt(text, "fuzz", text.size() % 2 == 0));
        },
        {vcas::ExitCode::kBadData});
    if (tokenizer) {
      encoded(*tokenizer, "the un [MASK] caf\u00e9 \u91ce, [UNK]");
      for (std::int32_t id = 0; id < tokenizer->size(); ++id)
        encoded(*tokenizer, tokenizer->token(id));
    }
    return 0;
  }
  static const std::string tokens =
      "[UNK]\n[MASK]\na\nb\n##a\n##b\nab\n##ba\nc\n\u00e9\n##\u00e9\n";
  static const vcas::WordPiece uncased(vcas::parse_vocab_txt(tokens, "fuzz", true));
  static const vcas::WordPiece cased(vcas::parse_vocab_txt(tokens, "fuzz", false));
  encoded(uncased, text);
  encoded(cased, text);
  return 0;
}
