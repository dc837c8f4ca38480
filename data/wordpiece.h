// Text to token ids: BERT's basic tokenizer, then greedy longest-match WordPiece.
//
// The ids are those of Hugging Face's `tokenizers` (BertTokenizerFast in transformers):
// 1. Tokens such as [MASK] are found literally.
// 2. Control characters are dropped. Chinese characters become words.
// 3. Uncased: accents are stripped (NFD without Mn), then letters are lower-cased one by one.
// 4. Words end at white space and around punctuation: ASCII 33-47, 58-64, 91-96, 123-126, and P*.
// 5. A word becomes its longest beginning that is a token, then the longest "##" token, and so on.
// 6. If that fails, or the word is too long, it becomes the unknown token.
// Tables are those of utf8proc (Unicode 15). `tokenizers` has older ones:
// marks and punctuation of scripts added since 2015 differ.
// The slow tokenizer of transformers differs from both: a last capital sigma gets its final form,
// unassigned code points are dropped, cased text is composed (NFC).
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/token_patterns.h"
#include "data/tokenizer.h"
#include "data/vocabulary.h"

namespace vcas {

class WordPiece final : public Tokenizer {
 public:
  // Throws as `read_vocabulary` does.
  // kBadData too if normalizing leaves nothing of an added token, or makes two the same.
  // `lower_case`: as of `read_vocabulary`.
  explicit WordPiece(const std::filesystem::path& vocabulary, bool lower_case = true);
  explicit WordPiece(const Vocabulary& vocabulary);

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  // Words are joined by blanks, as the decoder of `tokenizers` joins them without clean-up.
  std::string decode(std::span<const std::int32_t> ids) const override;

  const std::string& name() const override { return name_; }
  std::int32_t size() const override { return static_cast<std::int32_t>(ends_.size()) - 1; }
  bool lower_case() const override { return lower_case_; }
  bool strip_accents() const { return strip_accents_; }
  bool separate_cjk() const { return separate_cjk_; }
  bool clean_text() const { return clean_text_; }
  std::size_t max_word_length() const { return max_word_length_; }  // in code points
  // The tokens that a text is searched for before it is split, longest first.
  const std::vector<AddedToken>& added() const { return added_; }
  std::int32_t pieces() const override { return pieces_; }
  std::string_view token(std::int32_t id) const override;
  bool continues_word(std::int32_t id) const override { return token(id).starts_with("##"); }

  std::uint64_t fingerprint() const override;

  std::int32_t find(std::string_view token) const override;
  std::int32_t find_separator() const override { return find("[SEP]"); }
  std::int32_t unk() const override { return unknown_; }

  // vocab.txt, tokenizer_config.json, special_tokens_map.json and tokenizer.json.
  // transformers makes a BertTokenizer of the first three, where its defaults are ours.
  // Otherwise it reads the last.
  std::map<std::string, std::string> files(std::int64_t max_length) const override;

 private:
  enum class Kind : std::uint8_t { kLetter, kSpace, kPunctuation, kDropped, kNotAscii };
  struct Byte {
    Kind kind;
    char lower;
  };
  struct Slot {
    std::uint32_t hash = 0;
    std::int32_t id = -1;
  };

  Kind kind_of(std::int32_t code_point) const;
  std::int32_t find(std::uint64_t hash, bool continues, std::string_view text) const;
  std::int32_t find_piece(std::uint64_t hash, bool continues, std::string_view text) const;
  std::string normalized(std::string_view text) const;
  void add_normalized(std::int32_t id);
  template <class Use>
  void for_each_normalized(std::int32_t code_point, Use use) const;
  void encode_plain(std::string_view text, std::string& word, std::vector<std::int32_t>& ids) const;
  void add_code_point(std::int32_t code_point, std::string& word,
                      std::vector<std::int32_t>& ids) const;
  void add_word(std::string& word, std::vector<std::int32_t>& ids) const;

  std::string name_;
  bool clean_text_, separate_cjk_, strip_accents_, lower_case_;
  std::int32_t unknown_;
  std::size_t max_word_length_;
  std::array<Byte, 256> bytes_;
  std::string text_;               // all tokens, one after another
  std::vector<std::size_t> ends_;  // [size + 1] token i is text_[ends_[i], ends_[i + 1])
  std::vector<Slot> slots_;        // open addressing, a power of two, at most half full
  std::array<std::size_t, 2>
      longest_{};                  // bytes of the longest token that begins, continues a word
  std::vector<AddedToken> added_;  // longest first
  std::int32_t pieces_;
  TokenPatterns as_they_are_, normalized_;  // of added_
};

}  // namespace vcas
