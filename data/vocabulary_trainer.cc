#include "data/vocabulary_trainer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <map>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "data/wordpiece.h"

namespace vcas {
namespace {

using Piece = std::int32_t;  // an index of the vocabulary

// Splits text into words as WordPiece does: its tokens are all single characters, each as the begin
// of a word and as a continuation.
WordPiece character_splitter(bool lower_case) {
  Vocabulary characters{.name = "characters",
                        .tokens = {"[UNK]"},
                        .strip_accents = lower_case,
                        .lower_case = lower_case};
  for (std::int32_t point = 1; point <= 0x10FFFF; ++point) {
    const auto category = utf8proc_category(point);
    if (category == UTF8PROC_CATEGORY_CS) continue;
    // Most points beyond U+FFFF are no characters, or of private use.
    if (point > 0xFFFF && (category == UTF8PROC_CATEGORY_CN || category == UTF8PROC_CATEGORY_CO))
      continue;
    utf8proc_uint8_t bytes[4];
    const auto size = static_cast<std::size_t>(utf8proc_encode_char(point, bytes));
    const std::string text(reinterpret_cast<const char*>(bytes), size);
    characters.tokens.push_back(text);
    characters.tokens.push_back("##" + text);
  }
  return WordPiece(characters);
}

struct Word {
  std::vector<Piece> pieces;
  std::int64_t count = 0;
};

// Byte-pair encoding over the distinct words of a text. Pieces that continue a word begin with
// `prefix` bytes that are no part of it.
class Merger {
 public:
  Merger(std::vector<Word> words, std::vector<std::string>& tokens, std::size_t prefix)
      : words_(std::move(words)), tokens_(tokens), prefix_(prefix) {
    for (std::size_t i = 0; i < words_.size(); ++i) count_pairs(i, 1);
    for (const auto& [pair, places] : pairs_) queue_.push(candidate(pair));
  }

  // Merges one pair, which adds a token; false when no pair occurs twice.
  bool merge() {
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      if (best.count != pairs_[best.pair].count) continue;  // an older count
      if (best.count < 2) return false;
      // The text is new: how it is divided depends on earlier merges alone, so one pair makes it.
      const auto piece = static_cast<Piece>(tokens_.size());
      tokens_.push_back(best.text);
      merges_.push_back({best.pair.first, best.pair.second, piece});
      std::set<Pair> changed;
      const std::set<std::size_t> places = pairs_[best.pair].words;
      for (const std::size_t place : places) replace(place, best.pair, piece, changed);
      for (const Pair& pair : changed) queue_.push(candidate(pair));
      return true;
    }
    return false;
  }

  const std::vector<BpeMerge>& merges() const { return merges_; }

 private:
  using Pair = std::pair<Piece, Piece>;
  struct Places {
    std::int64_t count = 0;
    std::set<std::size_t> words;
  };
  struct Candidate {
    std::int64_t count;
    std::string text;
    Pair pair;
    bool operator<(const Candidate& other) const {
      return std::tie(count, other.text, other.pair) < std::tie(other.count, text, pair);
    }
  };

  Candidate candidate(const Pair& pair) const {
    return {pairs_.at(pair).count, tokens_[pair.first] + tokens_[pair.second].substr(prefix_),
            pair};
  }

  void count_pairs(std::size_t place, int sign) {
    const Word& word = words_[place];
    for (std::size_t i = 0; i + 1 < word.pieces.size(); ++i) {
      Places& places = pairs_[{word.pieces[i], word.pieces[i + 1]}];
      places.count += sign * word.count;
      if (sign > 0) {
        places.words.insert(place);
      } else {
        places.words.erase(place);
      }
    }
  }

  void note_pairs(const Word& word, std::set<Pair>& changed) const {
    for (std::size_t i = 0; i + 1 < word.pieces.size(); ++i)
      changed.emplace(word.pieces[i], word.pieces[i + 1]);
  }

  void replace(std::size_t place, const Pair& pair, Piece piece, std::set<Pair>& changed) {
    Word& word = words_[place];
    note_pairs(word, changed);
    count_pairs(place, -1);
    std::vector<Piece> merged;
    for (std::size_t i = 0; i < word.pieces.size(); ++i) {
      const bool here = i + 1 < word.pieces.size() && word.pieces[i] == pair.first &&
                        word.pieces[i + 1] == pair.second;
      merged.push_back(here ? piece : word.pieces[i]);
      i += here;
    }
    word.pieces = std::move(merged);
    count_pairs(place, 1);
    note_pairs(word, changed);
  }

  std::vector<Word> words_;
  std::vector<std::string>& tokens_;
  std::size_t prefix_;
  std::map<Pair, Places> pairs_;
  std::priority_queue<Candidate> queue_;
  std::vector<BpeMerge> merges_;
};

[[noreturn]] void fail_without_text() {
  throw Error(ExitCode::kBadData, "there is no text to learn a vocabulary from");
}

}  // namespace

std::vector<std::string> train_vocabulary(const std::function<bool(std::string&)>& next_line,
                                          const VocabularyOptions& options) {
  const WordPiece splitter = character_splitter(options.lower_case);
  std::map<std::vector<std::int32_t>, std::int64_t> counts;
  std::string line;
  std::vector<std::int32_t> ids, word;
  bool any_unknown = false;
  const auto end_word = [&] {
    if (!word.empty()) ++counts[word];
    word.clear();
  };
  while (next_line(line)) {
    ids.clear();
    splitter.encode(line, ids);
    for (const std::int32_t id : ids) {
      if (!splitter.continues_word(id)) end_word();
      if (id == splitter.unk())
        any_unknown = true;
      else
        word.push_back(id);
    }
    end_word();
  }
  if (counts.empty() && any_unknown)
    throw Error(
        ExitCode::kBadData,
        fmt::format("no word of the text can be learnt: all are longer than {} characters, or "
                    "have signs that are not in Unicode",
                    splitter.max_word_length()),
        "a script without blanks needs --kind bpe");
  if (counts.empty()) fail_without_text();

  std::vector<std::string> tokens(std::begin(kSpecialTokens), std::end(kSpecialTokens));
  std::set<std::int32_t> characters;
  for (const auto& [ids_of_word, count] : counts)
    characters.insert(ids_of_word.begin(), ids_of_word.end());
  std::map<std::int32_t, Piece> pieces;
  for (const std::int32_t id : characters) {
    pieces[id] = static_cast<Piece>(tokens.size());
    tokens.emplace_back(splitter.token(id));
  }
  if (std::ssize(tokens) > options.size)
    throw Error(ExitCode::kBadConfig,
                fmt::format("a vocabulary of {} cannot hold the special tokens and the {} "
                            "characters of the text",
                            options.size, characters.size()),
                fmt::format("ask for {} or more", tokens.size()));
  std::vector<Word> words;
  for (const auto& [ids_of_word, count] : counts) {
    Word& added = words.emplace_back();
    added.count = count;
    for (const std::int32_t id : ids_of_word) added.pieces.push_back(pieces[id]);
  }
  Merger merger(std::move(words), tokens, /*prefix=*/2);
  while (std::ssize(tokens) < options.size && merger.merge()) {
  }
  return tokens;
}

BpeVocabulary train_byte_bpe(const std::function<bool(std::string&)>& next_line,
                             std::int64_t size) {
  BpeVocabulary vocabulary{.name = "the vocabulary learnt", .tokens = byte_tokens()};
  std::vector<std::string>& tokens = vocabulary.tokens;
  const std::int64_t least = std::ssize(tokens) + 1;
  if (size < least)
    throw Error(
        ExitCode::kBadConfig,
        fmt::format("a vocabulary of {} cannot hold the 256 bytes and {}", size, kEndOfText),
        fmt::format("ask for {} or more", least));
  std::map<std::string, std::int64_t, std::less<>> counts;
  std::string line;
  while (next_line(line))
    for (std::string_view rest = line; !rest.empty();) {
      const std::string_view word = first_word(rest);
      rest.remove_prefix(word.size());
      const auto known = counts.find(word);
      if (known == counts.end())
        counts.emplace(word, 1);
      else
        ++known->second;
    }
  if (counts.empty()) fail_without_text();

  const ByteBpe bytes(vocabulary);
  std::vector<Word> words;
  for (const auto& [word, count] : counts) {
    Word& added = words.emplace_back();
    added.count = count;
    bytes.encode(word, added.pieces);
  }
  Merger merger(std::move(words), tokens, /*prefix=*/0);
  while (std::ssize(tokens) + 1 < size && merger.merge()) {
  }
  vocabulary.merges = merger.merges();
  vocabulary.added.push_back({.id = static_cast<std::int32_t>(tokens.size())});
  tokens.emplace_back(kEndOfText);
  return vocabulary;
}

}  // namespace vcas
