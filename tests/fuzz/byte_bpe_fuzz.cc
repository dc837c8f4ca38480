// The first byte chooses what the others are: a tokenizer.json, a merges.txt or text. A vocabulary
// is kBadData or tokenizes. Text is kBadData exactly where it is not UTF-8, and is decoded again.
#include "data/byte_bpe.h"
#include "data/vocabulary_trainer.h"
#include "tests/fuzz/encoded.h"
#include "tests/fuzz/fuzz_file.h"

namespace {

using vcas::ByteBpe;

void encode_and_decode(const ByteBpe& tokenizer, std::string_view text) {
  const auto ids = encoded(tokenizer, text);
  if (ids && !tokenizer.vocabulary().add_prefix_space && tokenizer.decode(*ids) != text)
    std::abort();
}

const ByteBpe& learnt_bpe() {
  static const ByteBpe tokenizer([] {
    std::size_t line = 0;
    return vcas::train_byte_bpe(
        [&](std::string& text) {
          text = "the low, the lower's caf\u00e9\n";
          return ++line < 4;
        },
        300);
  }());
  return tokenizer;
}

// With a merges.txt of these bytes.
const std::filesystem::path& folder_with(std::string_view merges) {
  static const std::filesystem::path folder = [] {
    const std::filesystem::path made = fuzz_path("byte_bpe");
    std::filesystem::create_directories(made);
    std::ofstream(made / "vocab.json") << learnt_bpe().files(64).at("vocab.json");
    return made;
  }();
  std::ofstream(folder / "merges.txt", std::ios::binary) << merges;
  return folder;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] == 't') {
    encode_and_decode(learnt_bpe(), text);
    return 0;
  }
  std::optional<ByteBpe> tokenizer;
  fuzz_read(
      [&] {
        tokenizer.emplace(data[0] == 'j' ? vcas::parse_bpe_json(text, "fuzz")
                                         : vcas::read_bpe(folder_with(text)));
      },
      {vcas::ExitCode::kBadData});
  if (!tokenizer) return 0;
  encode_and_decode(*tokenizer, "the lowest's  caf\u00e9\n\n<|endoftext|> <pad> \u0120x");
  for (std::int32_t id = 0; id < tokenizer->size(); ++id)
    encode_and_decode(*tokenizer, tokenizer->token(id));
  return 0;
}
