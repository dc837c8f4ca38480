#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/files.h"
#include "data/wordpiece.h"
#include "tests/core/temporary_folder.h"
#include "tests/support/catch.h"
#include "tests/support/check_error.h"

namespace fs = std::filesystem;
using namespace vcas;

namespace {

Vocabulary strange_vocabulary() {
  return {.name = "strange",
          .tokens = {"[MASK]", "a", "##b", "é", "[CLS]", "[UNK]", "[PAD]", "[SEP]", "\"", "<x>"},
          .added = {{7}, {9}, {0}, {4}, {5}},
          .unknown = 5,
          .max_word_length = 7,
          .clean_text = false,
          .separate_cjk = false,
          .strip_accents = false,
          .lower_case = true};
}

WordPiece written_and_read(const WordPiece& tokenizer,
                           const std::vector<std::string>& without = {}) {
  const TemporaryFolder folder;
  for (const auto& [name, text] : tokenizer.files(64))
    if (std::find(without.begin(), without.end(), name) == without.end())
      atomic_write(folder.path() / name, text);
  return WordPiece(folder.path());
}

}  // namespace

TEST_CASE("a tokenizer's files say all that decides about ids", "[tokenizer]") {
  const Vocabulary strange = strange_vocabulary();
  const WordPiece tokenizer(strange);
  CHECK(written_and_read(tokenizer).fingerprint() == tokenizer.fingerprint());
  // None of them goes without saying.
  for (const auto change : std::initializer_list<void (*)(Vocabulary&)>{
           [](Vocabulary& v) { v.tokens[1] = "c"; }, [](Vocabulary& v) { v.added.pop_back(); },
           [](Vocabulary& v) { v.added[1].normalized = true; },
           [](Vocabulary& v) { v.appended = 1; }, [](Vocabulary& v) { v.unknown = 1; },
           [](Vocabulary& v) { v.max_word_length = 8; }, [](Vocabulary& v) { v.clean_text = true; },
           [](Vocabulary& v) { v.separate_cjk = true; },
           [](Vocabulary& v) { v.strip_accents = true; },
           [](Vocabulary& v) { v.lower_case = false; }}) {
    Vocabulary other = strange;
    change(other);
    CHECK(written_and_read(WordPiece(other)).fingerprint() != tokenizer.fingerprint());
    CHECK(written_and_read(WordPiece(other)).fingerprint() == WordPiece(other).fingerprint());
  }
}

TEST_CASE("added tokens go in and come out, without a tokenizer.json too", "[tokenizer]") {
  const WordPiece tokenizer(
      {.name = "added",
       .tokens = {"[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "a", "newtok", "<e>"},
       .added = {{0}, {1}, {2}, {3}, {4}, {.id = 6, .normalized = true, .special = false}, {7}},
       .appended = 2});
  CHECK(written_and_read(tokenizer).fingerprint() == tokenizer.fingerprint());
  CHECK(written_and_read(tokenizer, {"tokenizer.json"}).fingerprint() == tokenizer.fingerprint());
  const auto files = tokenizer.files(64);
  CHECK(files.at("vocab.txt") == "[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\na\n");
  CHECK(nlohmann::json::parse(files.at("tokenizer_config.json"))["added_tokens_decoder"]["6"] ==
        nlohmann::json{{"content", "newtok"},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", true},
                       {"special", false}});
}

TEST_CASE("tokenizer_config.json names what a vocab.txt does not say", "[tokenizer]") {
  const auto config = [](const std::vector<AddedToken>& added, std::int32_t appended) {
    const WordPiece tokenizer({.name = "config",
                               .tokens = {"[UNK]", "[CLS]", "[SEP]", "a"},
                               .added = added,
                               .appended = appended});
    return nlohmann::json::parse(tokenizer.files(64).at("tokenizer_config.json"));
  };
  CHECK(config({{0}, {1}, {2}, {3}}, 1)["added_tokens_decoder"].size() == 4);
  CHECK_FALSE(config({{0}, {1}, {2}}, 0).contains("added_tokens_decoder"));
  CHECK(config({{0}, {1}, {2}}, 0)["model_max_length"] == 64);
}

// What transformers takes for a BertTokenizer has its defaults, whatever tokenizer.json says.
TEST_CASE("a tokenizer with other defaults than BertTokenizer's has another class", "[tokenizer]") {
  const auto config = [](std::int64_t max_word_length, bool clean_text) {
    const WordPiece tokenizer({.name = "config",
                               .tokens = {"[UNK]", "[CLS]", "[SEP]", "a"},
                               .added = {{0}, {1}, {2}},
                               .max_word_length = max_word_length,
                               .clean_text = clean_text});
    return nlohmann::json::parse(tokenizer.files(64).at("tokenizer_config.json"));
  };
  CHECK(config(100, true)["tokenizer_class"] == "BertTokenizer");
  CHECK_FALSE(config(100, true).contains("sep_token"));
  for (const nlohmann::json& other : {config(99, true), config(100, false)}) {
    CHECK(other["tokenizer_class"] == "PreTrainedTokenizerFast");
    CHECK(other["sep_token"] == "[SEP]");
    CHECK_FALSE(other.contains("mask_token"));
  }
}

TEST_CASE("a vocab.txt goes in and comes out", "[tokenizer]") {
  const WordPiece golden(fs::path(VCAS_SOURCE_DIR) / "tests/golden/wordpiece_vocab.txt");
  CHECK(golden.files(64).at("vocab.txt") ==
        read_file(fs::path(VCAS_SOURCE_DIR) / "tests/golden/wordpiece_vocab.txt"));
  CHECK(written_and_read(golden).fingerprint() == golden.fingerprint());
  CHECK(written_and_read(golden, {"tokenizer.json"}).fingerprint() == golden.fingerprint());
}

TEST_CASE("a vocab.txt of another tokenizer, or with other special tokens, is refused",
          "[tokenizer][error]") {
  const TemporaryFolder folder;
  atomic_write(folder.path() / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[E1]\na\n");
  const auto check = [&](const char* file, const std::string& text, const std::string& message) {
    atomic_write(folder.path() / file, text);
    check_error([&] { WordPiece tokenizer(folder.path()); }, ExitCode::kBadData, message);
    fs::remove(folder.path() / file);
  };
  const char* config = "tokenizer_config.json";
  check(config, R"({"mask_token": "[MASK]"})", "vocab.txt does not add");
  check(config, R"({"extra_special_tokens": ["[E1]"]})",
        "tokenizer_config.json:1:27: a special token is \"[E1]\", which ");
  check("special_tokens_map.json", R"({"additional_special_tokens": [{"content": "[E1]"}]})",
        "special_tokens_map.json:1:32: a special token is \"[E1]\", which ");
  for (const std::string name : {"BertJapaneseTokenizer", "AlbertTokenizerFast"})
    check(config, R"({"tokenizer_class": ")" + name + "\"}",
          "tokenizer_config.json:1:21: tokenizer_class is \"" + name.substr(0, 15));
  for (const std::string name : {"BertTokenizerFast", "DistilBertTokenizer", "ElectraTokenizer"}) {
    atomic_write(folder.path() / config,
                 R"({"tokenizer_class": ")" + name + R"(", "sep_token": "[SEP]"})");
    CHECK(WordPiece(folder.path()).size() == 6);
  }
}

TEST_CASE("tokenizer.json has the form that the tokenizers library writes", "[tokenizer]") {
  const fs::path file = fs::path(VCAS_SOURCE_DIR) / "tests/golden/wordpiece_tokenizer.json";
  CHECK(nlohmann::json::parse(WordPiece(file).files(64).at("tokenizer.json")) ==
        nlohmann::json::parse(read_file(file)));
}
