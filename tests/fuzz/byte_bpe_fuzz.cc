// The first byte chooses what the others are: a tokenizer.json, a merges.txt or text. A vocabulary
// is kBadData or tokenizes. Text is kBadData exactly where it is not UTF-8, and is decoded again.
#include <cstdlib>
#include <optional>

#include "core/error.h"
#include "data/byte_bpe.h"
#include "data/vocabulary_trainer.h"
#include "tests/fuzz/fuzz_file.h"

namespace {

using vcas::ByteBpe;

template <class Make>
std::optional<ByteBpe> made_bpe(Make make) {
  try {
    return ByteBpe(make());
  } catch (const vcas::Error& error) {
    if (error.code() != vcas::ExitCode::kBadData) std::abort();
    return std::nullopt;
  }
}

void encode_and_decode(const ByteBpe& tokenizer, std::string_view text) {
  std::vector<std::int32_t> ids;
  try {
    tokenizer.encode(text, ids);
    if (vcas::first_invalid_utf8(text)) std::abort();
  } catch (const vcas::Error& error) {
    if (error.code() != vcas::ExitCode::kBadData || !vcas::first_invalid_utf8(text)) std::abort();
    return;
  }
  for (const std::int32_t id : ids)
    if (id < 0 || id >= tokenizer.size()) std::abort();
  if (!tokenizer.vocabulary().add_prefix_space && tokenizer.decode(ids) != text) std::abort();
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
  const auto tokenizer = data[0] == 'j'
                             ? made_bpe([&] { return vcas::parse_bpe_json(text, "fuzz"); })
                             : made_bpe([&] { return vcas::read_bpe(folder_with(text)); });
  if (!tokenizer) return 0;
  encode_and_decode(*tokenizer, "the lowest's  caf\u00e9\n\n<|endoftext|> <pad> \u0120x");
  for (std::int32_t id = 0; id < tokenizer->size(); ++id)
    encode_and_decode(*tokenizer, tokenizer->token(id));
  return 0;
}
