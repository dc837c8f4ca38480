#include "data/wordnet.h"

#include <map>
#include <set>

#include "tests/core/environment.h"
#include "tests/data/data_files.h"
#include "tests/data/tiny_vocabulary.h"

using namespace vcas;

namespace {

const char* kLicence = "  1 This software and database is being provided to you\n";

// entity > (animal, plant); animal > dog; move > run; rest.
struct SmallWordNet {
  DataFolder folder;

  SmallWordNet() {
    folder.write_text(
        "data.noun",
        std::string(kLicence) +
            "00000100 03 n 01 entity 0 002 ~ 00000200 n 0000 ~ 00000300 n 0000 | a thing  \n"
            "00000200 05 n 02 animal 0 beast 0 001 @ 00000100 n 0000 | it lives; \"a | b\"\n"
            "00000300 20 n 01 plant 0 001 @ 00000100 n 0000 | it grows  \n"
            "00000400 05 n 0a dog 0 a 0 b 0 c 0 d 0 e 0 f 0 g 0 h 0 i 1 003 #m 00000200 n "
            "0000 @i 00000200 n 0000 @ 00000100 n 0000 | it barks\n");
    folder.write_text("data.verb",
                      std::string(kLicence) +
                          "00000100 38 v 01 move 0 000 01 + 02 00 | go  \n"
                          "00000200 38 v 01 run 0 001 @ 00000100 v 0000 01 + 02 00 | go "
                          "fast  \n"
                          "00000300 42 v 01 rest 0 000 01 + 02 00 | stay\n");
    folder.write_text("data.adj", "00000100 00 s 01 big(a) 0 000 | large\n");
    folder.write_text("data.adv", "00000100 02 r 01 well 0 000 | so\n");
  }
  void check_bad(const std::string& verb_line, const std::string& text) const {
    folder.write_text("data.verb", std::string(kLicence) + verb_line);
    check_error([&] { read_wordnet(folder.path()); }, ExitCode::kBadData, text);
  }
};

}  // namespace

TEST_CASE("wordnet's data files are read", "[wordnet]") {
  const SmallWordNet small;
  const std::vector<Synset> synsets = read_wordnet(small.folder.path());
  REQUIRE(synsets.size() == 9);
  CHECK(synsets[0].gloss == "a thing");
  CHECK(synsets[1].gloss == "it lives; \"a | b\"");
  CHECK(synsets[1].hypernyms == std::vector<std::int64_t>{0});
  CHECK(synsets[3].hypernyms == std::vector<std::int64_t>{1, 0});
  CHECK(synsets[5].hypernyms == std::vector<std::int64_t>{4});
  CHECK(synsets[7].part_of_speech == 'a');
  CHECK(lexicographer_files()[synsets[2].lexicographer_file] == "noun.plant");
  CHECK(lexicographer_files().size() == 45);
}

TEST_CASE("damaged wordnet files are refused by line", "[wordnet]") {
  const SmallWordNet small;
  small.check_bad("00000100 38 v 01 move 0 000 01 + 02 00\n",
                  "data.verb:2: no gloss where a synset has it");
  CHECK(error_of([&] { read_wordnet(small.folder.path()); }).hint() ==
        "the file is not one of WordNet's data files, or damaged; apt-get install --reinstall "
        "wordnet-base");
  small.check_bad("0000x100 38 v 01 move 0 000 | go\n", "data.verb:2: no offset where");
  small.check_bad("-0000100 38 v 01 move 0 000 | go\n", "data.verb:2: no offset where");
  small.check_bad("00000100 38 v 01 move 0 000 | \xFF\n", "data.verb:2: byte 31 is not valid");
  small.check_bad("00000100 45 v 01 move 0 000 | go\n", "data.verb:2: no lexicographer file where");
  small.check_bad("00000100 38 v 01 move 0 001 @ | go\n", "data.verb:2: no pointer's offset where");
  small.check_bad("00000100 38 v 01 run 0 001 @ 00000900 v 0000 | go\n",
                  "synset \"go\" has a hypernym at v 00000900 that is not there");
  const Error error = error_of([&] { read_wordnet(small.folder.path() / "none"); });
  CHECK(error.code() == ExitCode::kNoInput);
  CHECK(error.hint() == "apt-get install wordnet-base");
}

TEST_CASE("a synset without an unrelated one is refused", "[wordnet]") {
  const SmallWordNet small;
  const auto rows = [&](const std::string& verbs) {
    small.folder.write_text("data.verb", std::string(kLicence) + verbs);
    const std::vector<Synset> synsets = read_wordnet(small.folder.path());
    std::int64_t count = 0;
    for (const Split split : {Split::kTrain, Split::kTest})
      count += std::ssize(wordnet_rows(synsets, WordNetTask::kIsA, split));
    return count;
  };
  const std::string move = "00000100 38 v 01 move 0 000 | go\n";
  const std::string run = "00000200 38 v 01 run 0 001 @ 00000100 v 0000 | go fast\n";
  const Error error = error_of([&] { rows(move + run); });
  CHECK(error.code() == ExitCode::kBadData);
  CHECK(std::string(error.what()) == "WordNet: synset \"go fast\" is related to all others");
  CHECK(error.hint() ==
        "the files of data.folder are cut off or damaged; apt-get install --reinstall "
        "wordnet-base");
  const std::string race = "00000300 38 v 01 race 0 001 @ 00000200 v 0000 | go first\n";
  check_error([&] { rows(move + run + race); }, ExitCode::kBadData,
              "synset \"go first\" is related to all others");
  // Hypernyms in a circle end too.
  const std::string circle = "00000100 38 v 01 move 0 001 @ 00000200 v 0000 | go\n" + run;
  check_error([&] { rows(circle); }, ExitCode::kBadData, "is related to all others");
  CHECK(rows(circle + "00000300 42 v 01 rest 0 000 | stay\n") == 10);
}

TEST_CASE("wordnet as Debian has it", "[wordnet]") {
  if (!std::filesystem::exists(WordNetOptions().folder / "data.noun")) {
    WARN("skipped: the package wordnet-base is not installed");
    return;
  }
  const std::vector<Synset> synsets = read_wordnet(WordNetOptions().folder);
  CHECK(synsets.size() == 117659);

  const auto pairs = [&](Split split) { return wordnet_rows(synsets, WordNetTask::kIsA, split); };
  const std::vector<TextRow> train = pairs(Split::kTrain), test = pairs(Split::kTest);
  // 95,322 synsets have a hypernym; each gives two rows.
  CHECK(train.size() + test.size() == 190644);
  CHECK(std::abs(static_cast<double>(test.size()) - 190644.0 / 11) <
        5 * 2 * std::sqrt(95322.0 / 11));
  std::map<std::string, std::vector<std::int64_t>> by_gloss;
  for (std::int64_t i = 0; i < std::ssize(synsets); ++i) by_gloss[synsets[i].gloss].push_back(i);
  std::int64_t positive = 0;
  for (const TextRow& row : test) {
    // A gloss may stand for several synsets: one of them has to fit.
    bool is_hypernym = false;
    for (const std::int64_t synset : by_gloss.at(row.first))
      for (const std::int64_t hypernym : synsets[synset].hypernyms)
        is_hypernym |= synsets[hypernym].gloss == row.second;
    if (row.label == "is_a") {
      CHECK(is_hypernym);
      ++positive;
    } else if (by_gloss.at(row.first).size() == 1) {
      CHECK_FALSE(is_hypernym);
    }
  }
  CHECK(2 * positive == std::ssize(test));
  CHECK(pairs(Split::kTest)[100].second == test[100].second);

  const auto classes = [&](Split split) {
    return wordnet_rows(synsets, WordNetTask::kLexicographerFile, split);
  };
  const std::vector<TextRow> class_train = classes(Split::kTrain);
  CHECK(class_train.size() + classes(Split::kTest).size() == synsets.size());
  CHECK(std::abs(static_cast<double>(class_train.size()) - 106963) < 5 * 100);
  std::set<std::string> names;
  for (const TextRow& row : class_train) names.insert(row.label);
  CHECK(names.size() == 45);
}

TEST_CASE("pairs of glosses become a balanced dataset", "[wordnet]") {
  const SmallWordNet small;
  const WordPiece tokenizer = tiny_tokenizer();
  const auto rows = [&](WordNetTask task, Split split) {
    return wordnet_rows(read_wordnet(small.folder.path()), task, split);
  };
  std::int64_t total = 0;
  for (const Split split : {Split::kTrain, Split::kTest}) {
    const std::vector<TextRow> pairs = rows(WordNetTask::kIsA, split);
    total += std::ssize(pairs);
    for (const TextRow& row : pairs) {
      // The dog has one unrelated noun, the plant. Its first hypernym is told.
      if (row.first == "it barks")
        CHECK(row.second == (row.label == "is_a" ? "it lives; \"a | b\"" : "it grows"));
    }
    if (pairs.empty()) continue;
    const auto data =
        load_wordnet({.folder = small.folder.path(), .split = split, .cache = false}, tokenizer);
    CHECK(data->size() == std::ssize(pairs));
    CHECK(data->class_names() == std::vector<std::string>{"other", "is_a"});
    CHECK(data->label(0) == 1);
    CHECK(data->label(1) == 0);
  }
  CHECK(total == 8);
}

TEST_CASE("tokens of glosses are cached by files, split and vocabulary", "[wordnet][cache]") {
  const SmallWordNet small;
  const DataFolder cache;
  const EnvironmentVariable variable("VCAS_CACHE_DIR", cache.path().c_str());
  const WordPiece tokenizer = tiny_tokenizer();
  const WordPiece other(parse_vocab_txt("[UNK]\n[SEP]\n[CLS]\nc\n", "other.txt", true));
  for (const char* gloss : {"a", "b"}) {
    std::string verbs;
    for (int i = 10; i < 60; ++i)
      verbs += "000000" + std::to_string(i) + " 38 v 01 go 0 000 | " + gloss + "\n";
    small.folder.write_text("data.verb", verbs);
    for (const Split split : {Split::kTrain, Split::kTest})
      for (const WordPiece* read : {&tokenizer, &other}) {
        WordNetOptions options{.folder = small.folder.path(),
                               .task = WordNetTask::kLexicographerFile,
                               .split = split,
                               .cache = false};
        const std::vector<std::int32_t> want = load_wordnet(options, *read)->content().tokens;
        options.cache = true;
        CHECK(load_wordnet(options, *read)->content().tokens == want);
      }
  }
}
