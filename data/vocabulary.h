// The vocabulary of a WordPiece tokenizer, as its files give it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vcas {

// BERT's, in the order in which vocabularies made here have them.
inline constexpr const char* kSpecialTokens[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

// A token that is found in a text before the text is split into words, such as [MASK].
struct AddedToken {
  std::int32_t id = 0;
  bool normalized = false;  // both token and text are normalized first; else the text is as it came
  bool special = true;      // is written as it was read, and decides about nothing here
};

struct Vocabulary {
  std::string name;                 // the file, for errors
  std::vector<std::string> tokens;  // by id; those that continue a word begin with "##"
  std::vector<AddedToken> added;
  std::int32_t appended = 0;           // so many tokens at the end are added ones alone, of which
                                       // no word is made
  std::int32_t unknown = 0;            // the id of a word that no tokens make up
  std::int64_t max_word_length = 100;  // in code points; a longer word is unknown
  // The normalizer.
  bool clean_text = true;     // drop control characters
  bool separate_cjk = true;   // every Chinese character is a word
  bool strip_accents = true;  // decompose and drop nonspacing marks
  bool lower_case = true;
};

// vocab.txt: one token a line, its id is the number of the line from 0. kBadData: empty, an empty
// line, a token twice, invalid UTF-8, no [UNK].
Vocabulary parse_vocab_txt(std::string_view text, const std::string& name, bool lower_case);

// The part of a tokenizer.json that BERT uses: a BertNormalizer, a BertPreTokenizer, a WordPiece
// model, added tokens.
// kBadData, for a file that has one of these faults:
//   it is not JSON
//   it is another kind of tokenizer, or lacks the unknown token
//   ids are not 0 to n-1 with added tokens last
//   an added token sets single_word, lstrip or rstrip
Vocabulary parse_tokenizer_json(std::string_view text, const std::string& name);

// Reads a tokenizer.json, a vocab.txt, or a folder with one of them, the first before the second.
// A tokenizer.json has its own say on case. `lower_case` is for a vocab.txt.
// A tokenizer_config.json beside the vocab.txt may have do_lower_case, which goes before it.
// It may also set strip_accents and tokenize_chinese_chars, and have an added_tokens_decoder.
// Missing: kNoInput.
// kBadData: the files of the folder contradict each other, or name another kind of tokenizer.
Vocabulary read_vocabulary(const std::filesystem::path& path, bool lower_case);

// What the files say of case: `normalizer.lowercase` of a tokenizer.json, else `do_lower_case` of a
// tokenizer_config.json. Nothing if neither says it.
// A folder may have both. A tokenizer.json stands alone, a vocab.txt has the second one beside it.
// kBadData if their normalizers differ.
std::optional<bool> lower_case_of(const std::filesystem::path& path);

// The code point at `at`, which moves behind it; -1 and a byte further where there is none.
std::int32_t next_long_code_point(std::string_view text, std::size_t& at);
inline std::int32_t next_code_point(std::string_view text, std::size_t& at) {
  if (const auto byte = static_cast<unsigned char>(text[at]); byte < 0x80) {  // ASCII, most of them
    ++at;
    return byte;
  }
  return next_long_code_point(text, at);
}

// The offset of the first byte that no UTF-8 sequence holds.
// Surrogates and overlong forms are not UTF-8.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

}  // namespace vcas
