#include "data/vocabulary_trainer.h"

#include <random>
#include <set>

#include "tests/data/data_files.h"

using namespace vcas;

namespace {

using Tokens = std::vector<std::string>;

Tokens train(std::vector<std::string> lines, const VocabularyOptions& options) {
  return train_vocabulary(each_of(std::move(lines)), options);
}

}  // namespace

TEST_CASE("a vocabulary: special tokens, characters, then merges by frequency", "[vocabulary]") {
  // Pairs: l##o 7, ##o##w 7, ##w##e 2, ##e##r 2 twice over; "##o##w" is first in byte order.
  const Tokens tokens = train({"low low low low low", "LOWER", "löwer,"}, {.size = 19});
  CHECK(tokens == Tokens{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", "##e", "l", "##o",
                         "##r", "##w", "##ow", "low", "##er", "lower"});
  const Tokens fewer = train({"low low low low low", "LOWER", "löwer,"}, {.size = 12});
  CHECK(fewer == Tokens(tokens.begin(), tokens.begin() + 12));
}

TEST_CASE("a cased vocabulary keeps case and accents", "[vocabulary]") {
  const Tokens tokens = train({"Äb Äb"}, {.size = 100, .lower_case = false});
  CHECK(tokens == Tokens{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##b", "Ä", "Äb"});
  // A pair that comes once is left. So is what Unicode has no character for.
  const Tokens once = train({"ab \U0001FFFE c"}, {.size = 100, .lower_case = false});
  CHECK(once == Tokens{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "c"});
}

TEST_CASE("characters of all planes are learnt, the others before them", "[vocabulary]") {
  const Tokens tokens =
      train({"\U0001F600 \U00020000\U0001D49C \U00010400b b\uFB01"}, {.size = 100});
  CHECK(tokens == Tokens{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "b", "##b", "##\uFB01",
                         "\U00010428", "\U0001D49C", "\U0001F600", "\U00020000"});
}

TEST_CASE("no token repeats, and the same text gives the same tokens", "[vocabulary]") {
  std::mt19937 random(1);
  std::vector<std::string> lines(300);
  for (std::string& line : lines)
    for (int i = 0; i < 40; ++i) line += "aaabbc "[random() % 7];
  const Tokens tokens = train(lines, {.size = 400});
  CHECK(tokens.size() == 400);
  CHECK(std::set(tokens.begin(), tokens.end()).size() == tokens.size());
  CHECK(train(lines, {.size = 400}) == tokens);
}

TEST_CASE("texts without a vocabulary", "[vocabulary]") {
  check_error(
      [] {
        train({"", "  "}, {});
      },
      ExitCode::kBadData, "there is no text to learn a vocabulary from");
  for (const std::string& word : {std::string(101, 'a'), std::string("\U0001FFFE")})
    check_error([&] { train({word}, {.size = 50}); }, ExitCode::kBadData,
                "no word of the text can be learnt: all are longer than 100 characters, or have "
                "signs that are not in Unicode",
                "--kind bpe");
  const Error error = error_of([] { train({"abc"}, {.size = 7}); });
  CHECK(error.code() == ExitCode::kBadConfig);
  CHECK(std::string(error.what()) ==
        "a vocabulary of 7 cannot hold the special tokens and the 3 characters of the text");
  CHECK(error.hint() == "ask for 8 or more");
  CHECK(train({"abc"}, {.size = 8}).size() == 8);
}
