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
// model and added tokens. kBadData: not JSON, another kind of tokenizer, ids that are not 0 to n-1,
// those of added tokens last, no unknown token, an added token that sets single_word, lstrip or
// rstrip.
Vocabulary parse_tokenizer_json(std::string_view text, const std::string& name);

// A tokenizer.json (which has its own say on case), a vocab.txt, or a folder with one of them, the
// first before the second. For a vocab.txt, what the tokenizer_config.json beside it says of
// do_lower_case goes before `lower_case`, and it may set strip_accents and tokenize_chinese_chars
// and have an added_tokens_decoder. Missing: kNoInput. kBadData where the files of the folder
// contradict each other.
Vocabulary read_vocabulary(const std::filesystem::path& path, bool lower_case);

// What a Hugging Face folder says: `normalizer.lowercase` of tokenizer.json, `do_lower_case` of
// tokenizer_config.json; nothing where neither does. kBadData where their normalizers differ. Of
// a tokenizer.json: what it says itself; of a vocab.txt: what tokenizer_config.json beside it says.
std::optional<bool> lower_case_of(const std::filesystem::path& path);

// The offset of the first byte that no UTF-8 sequence holds; surrogates and overlong forms are not
// UTF-8.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

}  // namespace vcas
