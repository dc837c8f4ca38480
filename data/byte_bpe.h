// Text to token ids: byte-level byte-pair encoding as of GPT-2 (Radford et al. 2019).
//
// The ids are those of Hugging Face's `tokenizers` (GPT2Tokenizer in transformers):
// 1. Tokens such as <|endoftext|> are found literally.
// 2. GPT-2's pattern splits the text into words. A blank begins the word that follows it.
// 3. Each byte of a word is a token.
// 4. The two neighbours of the merge with the lowest number become one token, again and again.
//    The first such pair of the word goes before others.
// Every text has tokens, and no token is unknown. Letters and numbers are those of utf8proc.
// utf8proc may lack those that Unicode has added since, and `tokenizers` may have them.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/token_patterns.h"
#include "data/tokenizer.h"
#include "data/vocabulary.h"

namespace vcas {

inline constexpr std::string_view kEndOfText = "<|endoftext|>";  // GPT-2's, between documents

struct BpeMerge {
  std::int32_t left = 0, right = 0;  // tokens
  std::int32_t token = 0;            // what they become
  bool operator==(const BpeMerge&) const = default;
};

// Tokens have the characters of files: one for each byte (`byte_tokens`).
struct BpeVocabulary {
  std::string name;                 // the file, for errors
  std::vector<std::string> tokens;  // by id
  std::vector<AddedToken> added;
  std::int32_t appended = 0;      // so many tokens at the end are added ones alone
  std::vector<BpeMerge> merges;   // the first before others
  bool add_prefix_space = false;  // text that does not begin with a blank gets one
};

// The characters that stand for bytes in files, in the order in which vocabularies have them.
// Printable ones of Latin-1 stand for themselves, others are U+0100 and on (GPT-2's encoder.py).
std::vector<std::string> byte_tokens();

// The first word of a text that is not empty, by GPT-2's pattern:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// The words of a text are this one and those of the rest. `text` is valid UTF-8.
std::string_view first_word(std::string_view text);

// The part of a tokenizer.json that GPT-2 uses: a ByteLevel pre-tokenizer, a BPE model, added
// tokens.
// kBadData, for a file that has one of these faults:
//   it is not JSON
//   it has a normalizer, another pre-tokenizer, or a setting of the model that changes ids
//   ids are not 0 to n-1 with added tokens last
//   a merge is there twice, or of tokens that are not in the vocab
//   an added token sets single_word, lstrip or rstrip
BpeVocabulary parse_bpe_json(std::string_view text, const std::string& name);

// Reads one of these:
//   a tokenizer.json
//   a folder with a tokenizer.json, with which its other files must agree
//   vocab.json or its folder, with merges.txt, and tokenizer_config.json where it is
// Missing: kNoInput. kBadData: as `parse_bpe_json` has it, or the folder is not that of a GPT-2.
BpeVocabulary read_bpe(const std::filesystem::path& path);

// Whether `read_bpe` is for this path, by names of files and the model's type in a tokenizer.json.
bool is_bpe(const std::filesystem::path& path);

class ByteBpe final : public Tokenizer {
 public:
  // Throws as `read_bpe` does.
  // kBadData too:
  //   a byte has no token
  //   a merge has characters that stand for no byte
  //   an added token is also a piece of other bytes
  explicit ByteBpe(const std::filesystem::path& path);
  explicit ByteBpe(BpeVocabulary vocabulary);

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  // The bytes of the tokens: those of the text that was encoded, unless it got a blank before.
  std::string decode(std::span<const std::int32_t> ids) const override;

  const BpeVocabulary& vocabulary() const { return vocabulary_; }
  const std::string& name() const override { return vocabulary_.name; }
  std::int32_t size() const override {
    return static_cast<std::int32_t>(vocabulary_.tokens.size());
  }
  std::int32_t pieces() const override { return size() - vocabulary_.appended; }
  bool lower_case() const override { return false; }
  bool adds_blank() const override { return vocabulary_.add_prefix_space; }
  // As files have it: a leading blank is "\u0120".
  std::string_view token(std::int32_t id) const override;
  bool continues_word(std::int32_t) const override { return false; }  // each may begin a text
  std::uint64_t fingerprint() const override;
  std::int32_t find(std::string_view token) const override;
  std::int32_t find_separator() const override { return find(kEndOfText); }
  std::int32_t unk() const override { return -1; }

  // vocab.json, merges.txt, tokenizer_config.json, special_tokens_map.json and tokenizer.json, as
  // GPT2Tokenizer has them.
  std::map<std::string, std::string> files(std::int64_t max_length) const override;

 private:
  struct Work;  // memory that the words of a text share
  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  using Ids = std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>>;

  void encode_plain(std::string_view text, Work& work, std::vector<std::int32_t>& ids) const;
  void add_word(std::string_view word, Work& work, std::vector<std::int32_t>& ids) const;
  std::int32_t rank(std::int32_t left, std::int32_t right) const;  // -1 where there is none

  BpeVocabulary vocabulary_;
  std::vector<std::string> bytes_;                         // by id: what a token is in a text
  std::array<std::int32_t, 256> byte_ids_{};               // tokens of single bytes
  std::unordered_map<std::uint64_t, std::int32_t> ranks_;  // places of merges, by their two tokens
  Ids ids_;                                                // of tokens
  Ids whole_;                               // of the bytes of words that become one token
  TokenPatterns as_they_are_, normalized_;  // added tokens: the latter are looked for after
};

}  // namespace vcas
