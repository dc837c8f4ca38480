#include "data/wordpiece.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <unordered_map>

#include "core/compressed_file.h"
#include "core/files.h"
#include "tests/data/data_files.h"
#include "tests/data/utf8_text.h"
#include "tests/support/fewer_cases.h"
#include "tests/support/shared_data.h"

using namespace vcas;
using nlohmann::json;
using Ids = std::vector<std::int32_t>;

namespace {

const std::string kGolden = VCAS_SOURCE_DIR "/tests/golden/wordpiece_";

Ids encode(const WordPiece& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}

std::string decoded(const WordPiece& tokenizer, std::string_view text) {
  std::string tokens;
  for (const std::int32_t id : encode(tokenizer, text)) {
    if (!tokens.empty()) tokens += ' ';
    tokens += tokenizer.token(id);
  }
  return tokens;
}

json golden() { return json::parse(read_file(kGolden + "ids.json")); }
json golden_tokenizer() { return json::parse(read_file(kGolden + "tokenizer.json")); }

WordPiece from_json(const json& document) {
  return WordPiece(parse_tokenizer_json(document.dump(1), "tokenizer.json"));
}

Bytes bytes(const std::string& text) { return {text.begin(), text.end()}; }

void check_bad_txt(const std::string& text, const std::string& message) {
  check_error([&] { parse_vocab_txt(text, "vocab.txt", true); }, ExitCode::kBadData, message);
}

void check_bad_json(const std::string& text, const std::string& message) {
  check_error([&] { parse_tokenizer_json(text, "tokenizer.json"); }, ExitCode::kBadData, message);
}

// The golden tokenizer.json with one value changed; a null removes it.
void check_bad_json(const char* pointer, const json& value, const std::string& message) {
  json document = golden_tokenizer();
  document[json::json_pointer(pointer)] = value;
  check_bad_json(document.dump(1), message);
}

}  // namespace

TEST_CASE("ids of hard texts are those of the tokenizers library", "[wordpiece]") {
  const json data = golden();
  json document = golden_tokenizer();
  REQUIRE(data["variants"].size() == 7);
  for (const json& variant : data["variants"]) {
    document["normalizer"] = variant["normalizer"];
    const bool added = variant.contains("added_tokens");
    if (added) document["added_tokens"] = variant["added_tokens"];
    const WordPiece tokenizer = from_json(document);
    const json& texts = data[added ? "added_texts" : "texts"];
    REQUIRE(variant["ids"].size() == texts.size());
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const std::string text = texts[i];
      INFO(variant["normalizer"] << " " << json(text));
      CHECK(encode(tokenizer, text) == variant["ids"][i].get<Ids>());
    }
  }
}

TEST_CASE("vocab.txt and tokenizer.json give the same ids", "[wordpiece]") {
  const json data = golden();
  for (const bool lower_case : {true, false}) {
    const WordPiece tokenizer(kGolden + "vocab.txt", lower_case);
    CHECK(tokenizer.lower_case() == lower_case);
    const json& want = data["variants"][lower_case ? 0 : 1]["ids"];
    for (std::size_t i = 0; i < want.size(); ++i)
      CHECK(encode(tokenizer, data["texts"][i].get<std::string>()) == want[i].get<Ids>());
  }
}

// `tokenizers` has Unicode tables of about 2015: what they lack is a letter there. Where its tables
// know a code point, ours agree, but for three that changed category since.
TEST_CASE("every code point cuts a word as in the tokenizers library", "[wordpiece]") {
  const json data = golden();
  for (const bool lower_case : {true, false}) {
    const WordPiece tokenizer(kGolden + "vocab.txt", lower_case);
    const std::int32_t a = tokenizer.id("a"), inner = tokenizer.id("##a");
    const json& ranges = data["code_points"][lower_case ? "uncased" : "cased"];
    std::size_t next = 0;
    int newer = 0;
    constexpr std::uint32_t kEnd = repetitions(0x110000);
    for (std::uint32_t point = 0; point < kEnd; ++point) {
      if (0xD800 <= point && point < 0xE000) continue;
      while (next < ranges.size() && ranges[next][1].get<std::uint32_t>() < point) ++next;
      const bool listed = next < ranges.size() && ranges[next][0].get<std::uint32_t>() <= point;
      const std::string want = listed ? ranges[next][2].get<std::string>() : "letter";
      const Ids ids = encode(tokenizer, std::string("a").append(utf8(point)).append("a"));
      std::string got = "letter";
      if (ids == Ids{a, inner})
        got = "dropped";
      else if (ids == Ids{a, a})
        got = "space";
      else if (ids.size() == 3 && ids.front() == a && ids.back() == a)
        got = "word";
      if (got == want) continue;
      if (want == "letter") {
        ++newer;
        if (point > 0x600) continue;
      }
      INFO(std::hex << point << " is " << got << " here, " << want << " there");
      CHECK((point == 0x166D || point == 0x1734 || point == 0x111C9));
    }
    CHECK(newer < (lower_case ? 700 : 200));
  }
}

TEST_CASE("capitals become small one by one", "[wordpiece]") {
  const json data = golden();
  Vocabulary vocabulary{.name = "letters", .tokens = {"[UNK]"}, .strip_accents = false};
  std::istringstream small(data["small"].get<std::string>());
  std::unordered_map<std::string, std::int32_t> ids;
  Ids want;
  for (std::string letter; small >> letter;) {
    const auto [known, is_new] =
        ids.emplace(letter, static_cast<std::int32_t>(vocabulary.tokens.size()));
    if (is_new) vocabulary.tokens.push_back(letter);
    want.push_back(known->second);
  }
  REQUIRE(want.size() > 1400);
  CHECK(encode(WordPiece(vocabulary), data["capitals"].get<std::string>()) == want);
}

TEST_CASE("words are split greedily", "[wordpiece]") {
  // The specification: all prefixes, the longest first, in a list of tokens.
  std::mt19937 random(7);
  const auto word = [&](std::size_t longest) {
    std::string text;
    for (std::size_t n = 1 + random() % longest; n > 0; --n) text += "abc"[random() % 3];
    if (random() % 4 == 0) text += "\u00e9";
    return text;
  };
  for (int round = 0; round < 20; ++round) {
    Vocabulary vocabulary{.name = "random", .tokens = {"[UNK]"}, .max_word_length = 9};
    vocabulary.strip_accents = false;
    for (int i = 0; i < 12; ++i) {
      const std::string token = (i % 2 == 0 ? "" : "##") + word(3);
      if (std::count(vocabulary.tokens.begin(), vocabulary.tokens.end(), token) == 0)
        vocabulary.tokens.push_back(token);
    }
    const auto& tokens = vocabulary.tokens;
    const WordPiece tokenizer(vocabulary);
    for (int i = 0; i < 200; ++i) {
      const std::string text = word(10);
      Ids want;
      std::size_t begin = 0, end = 0;
      for (; begin < text.size(); begin = end) {
        for (end = text.size(); end > begin; --end) {
          const auto found = std::find(tokens.begin(), tokens.end(),
                                       (begin ? "##" : "") + text.substr(begin, end - begin));
          if (found == tokens.end()) continue;
          want.push_back(static_cast<std::int32_t>(found - tokens.begin()));
          break;
        }
        if (end == begin) break;
      }
      const auto length =
          std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; });
      if (begin < text.size() || length > 9) want = {0};
      INFO(text);
      CHECK(encode(tokenizer, text) == want);
    }
  }
}

TEST_CASE("questions get the published ids", "[wordpiece]") {
  const std::filesystem::path folder = shared_data("bert_vocab");
  if (folder.empty()) return;
  const WordPiece tokenizer(folder / "vocab.txt");
  CHECK(tokenizer.size() == 30522);
  const auto read = [&](const char* name) {
    return json::parse(read_decompressed(folder / name, 1 << 26));
  };
  const json questions = read("question_tokens.json.gz"),
             want = read("tokenized_questions.json.gz");
  REQUIRE(questions.size() == 5000);
  REQUIRE(want.size() == 5000);
  for (std::size_t i = 0; i < want.size(); ++i) {
    const std::string text = questions[i]["original"];
    if (encode(tokenizer, text) != want[i].get<Ids>()) FAIL_CHECK(i << " " << text);
  }
}

TEST_CASE("encode appends and may be called from several threads", "[wordpiece]") {
  const WordPiece tokenizer(kGolden + "vocab.txt");
  Ids ids = {7};
  tokenizer.encode("the", ids);
  CHECK(ids == Ids{7, tokenizer.id("the")});
  const std::string text = golden()["texts"].dump(-1);
  const Ids want = encode(tokenizer, text);
  std::vector<Ids> got(4);
  std::vector<std::thread> threads;
  for (Ids& out : got)
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) out = encode(tokenizer, text);
    });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& out : got) CHECK(out == want);
}

TEST_CASE("tokens are known by name and number", "[wordpiece]") {
  const WordPiece tokenizer(kGolden + "vocab.txt");
  CHECK(tokenizer.pad() == 0);
  CHECK(tokenizer.unk() == 1);
  CHECK(tokenizer.cls() == 2);
  CHECK(tokenizer.sep() == 3);
  CHECK(tokenizer.mask() == 4);
  CHECK(tokenizer.token(tokenizer.id("##aff")) == "##aff");
  CHECK(tokenizer.continues_word(tokenizer.id("##aff")));
  CHECK_FALSE(tokenizer.continues_word(tokenizer.id("the")));
  CHECK(decoded(tokenizer, "Unaffable") == "un ##aff ##able");
  const Error error = error_of([&] { tokenizer.id("[MSK]"); });
  CHECK(error.code() == ExitCode::kBadData);
  CHECK_THAT(error.what(), ContainsSubstring("wordpiece_vocab.txt: no token \"[MSK]\""));
  CHECK(error.hint() == "did you mean \"[MASK]\"?");
  const WordPiece bare(parse_vocab_txt("a\n[UNK]", "vocab.txt", true));
  check_error([&] { bare.cls(); }, ExitCode::kBadData, "vocab.txt: no token \"[CLS]\"");
  CHECK(decoded(bare, "a [MASK]") == "a [UNK] [UNK] [UNK]");
}

TEST_CASE("invalid UTF-8 is found where it begins", "[wordpiece]") {
  CHECK_FALSE(first_invalid_utf8("").has_value());
  CHECK_FALSE(first_invalid_utf8("abcdefgh\u00e9\u91ce\U0010ffff" + std::string(1, '\0')));
  const std::string bad[] = {
      "\x80",  // a continuation alone
      "\xC3",
      "\xE9\x87",  // cut off
      "\xC3(",
      "\xF0\x9F\x98 ",  // cut off by another byte
      "\xC0\xAF",
      "\xE0\x80\xAF",  // overlong
      "\xF0\x80\x80\xAF",
      "\xC1\xBF",
      "\xED\xA0\x80",
      "\xED\xBF\xBF",  // surrogates
      "\xF4\x90\x80\x80",
      "\xF5\x80\x80\x80",  // above U+10FFFF
      "\xFE",
      "\xFF",
  };
  const WordPiece tokenizer(kGolden + "vocab.txt");
  for (const std::string& sequence : bad)
    for (const std::string before : {"", "a", "the \u00e9 [MASK] low "}) {
      const std::string text = before + sequence;
      INFO(json(before) << " + " << json(Bytes(sequence.begin(), sequence.end())));
      CHECK(first_invalid_utf8(text) == before.size());
      CHECK(first_invalid_utf8(text + " the lowest") == before.size());
      check_error([&] { encode(tokenizer, text); }, ExitCode::kBadData,
                  "invalid UTF-8 at byte " + std::to_string(before.size()));
    }
}

TEST_CASE("vocab.txt: line ends and what is wrong", "[wordpiece]") {
  for (const char* text : {"[UNK]\na\n", "[UNK]\na", "[UNK]\r\na\r\n", "\xEF\xBB\xBF[UNK]\na\n"})
    CHECK(parse_vocab_txt(text, "vocab.txt", true).tokens ==
          std::vector<std::string>{"[UNK]", "a"});
  check_bad_txt("", "vocab.txt: is empty, expected one token a line");
  check_bad_txt("\xEF\xBB\xBF", "vocab.txt: is empty");
  check_bad_txt("a\nb\n", "vocab.txt: no token [UNK] among 2 lines");
  check_bad_txt("[UNK]\na\nb\na\n", "vocab.txt:4: token \"a\" is already in line 2");
  check_bad_txt("[UNK]\n\na\n", "vocab.txt:2: the line is empty, expected a token");
  check_bad_txt("[UNK]\na\n\n", "vocab.txt:3: the line is empty");
  check_bad_txt("[UNK]\na\n\xFF\n", "vocab.txt:3: invalid UTF-8 (byte 0xff at offset 8)");
}

TEST_CASE("tokenizer.json: what is wrong is said with its place", "[wordpiece]") {
  check_bad_json("", "tokenizer.json:1:1: ");
  check_bad_json("{\"model\": {\n", "tokenizer.json:2:1: ");
  CHECK(error_of([] { parse_tokenizer_json("{\"model\": {\n", "tokenizer.json"); }).hint() ==
        "the file is damaged or cut off: copy or download it again");
  check_bad_json("[]", "tokenizer.json: not a JSON object");
  check_bad_json("{\"a\": \"\xFF\"}", "tokenizer.json:1: invalid UTF-8");
  check_bad_json("{}", "tokenizer.json: no normalizer of type BertNormalizer");
  check_bad_json("/normalizer", nullptr, "no normalizer of type BertNormalizer");
  check_bad_json("/normalizer/type", "NFC",
                 "normalizer is of type \"NFC\", expected \"BertNormalizer\"");
  check_bad_json("/normalizer/lowercase", 1, "lowercase must be true or false");
  check_bad_json("/pre_tokenizer/type", "Whitespace",
                 "pre_tokenizer is of type \"Whitespace\", expected \"BertPreTokenizer\"");
  check_bad_json("/model/type", "BPE", "model is of type \"BPE\", expected \"WordPiece\"");
  check_bad_json("/model/type", nullptr, "type must be a string");
  check_bad_json("/model/continuing_subword_prefix", "@@", "must be \"##\"");
  check_bad_json("/model/max_input_chars_per_word", -1,
                 "\"max_input_chars_per_word\" must be an integer from 0 to 2147483647");
  check_bad_json("/model/vocab", nullptr, "the model has no vocab");
  check_bad_json("/model/vocab/the", 5, "id 5 is that of \"!\" already");
  check_bad_json("/model/vocab/the", 173, "no token has id ");
  check_bad_json("/model/vocab/the", 1e9, "\"the\" must be an integer from 0 to ");
  check_bad_json("/model/vocab/the", "x", "\"the\" must be an integer from 0 to ");
  check_bad_json("/model/unk_token", "<unk>", "unk_token \"<unk>\" is not in the vocab");
  check_bad_json("/model/unk_token", nullptr, "unk_token must be a string");
  check_bad_json("/added_tokens/4/lstrip", true,
                 "added token \"[MASK]\" sets lstrip, which is not supported");
  check_bad_json("/added_tokens/4/id", 5, "token \"[MASK]\" has id 4 already");
  check_bad_json("/added_tokens/4/content", "", "an added token needs a content and an id");
  json document = golden_tokenizer();
  const std::int64_t size = std::ssize(document["model"]["vocab"]);
  document["model"]["vocab"]["more"] = size + 1;
  document["added_tokens"].push_back({{"id", size}, {"content", "newtok"}});
  check_bad_json(document.dump(),
                 fmt::format("added token \"newtok\" has id {}, which is for the {} "
                             "of the vocab",
                             size, size + 1));
  // The place is that of the value.
  check_bad_json("{\"normalizer\":\n {\"type\": \"NFC\"}}", "tokenizer.json:2:2: normalizer is of");
}

TEST_CASE("tokenizer.json: tokens added after the vocabulary, word length", "[wordpiece]") {
  json document = golden_tokenizer();
  const auto size = static_cast<std::int32_t>(document["model"]["vocab"].size());
  document["added_tokens"].push_back({{"id", size}, {"content", "[low]"}});
  document["added_tokens"].push_back({{"id", size + 1}, {"content", "[low][MASK]"}});
  document["model"]["max_input_chars_per_word"] = 3;
  const WordPiece tokenizer = from_json(document);
  CHECK(tokenizer.size() == size + 2);
  CHECK(decoded(tokenizer, "low[low]lows [LOW] [low][MASK]") ==
        "low [low] [UNK] [ low ] [low][MASK]");
}

TEST_CASE("tokenizer.json: what is left out of the normalizer is true", "[wordpiece]") {
  json document = golden_tokenizer();
  document["normalizer"] = {{"type", "BertNormalizer"}};
  const WordPiece tokenizer = from_json(document);
  CHECK(tokenizer.clean_text());
  CHECK(tokenizer.separate_cjk());
  CHECK(tokenizer.lower_case());
  CHECK(tokenizer.strip_accents());
}

TEST_CASE("an added token is a word, and no word is made of it", "[wordpiece]") {
  json document = golden_tokenizer();
  const auto size = static_cast<std::int32_t>(document["model"]["vocab"].size());
  document["added_tokens"].push_back({{"id", size}, {"content", "newtok"}, {"normalized", true}});
  document["added_tokens"].push_back({{"id", size + 1}, {"content", "##ffy"}});
  const WordPiece tokenizer = from_json(document);
  CHECK(decoded(tokenizer, "newtok newtoks NEWTOK newto stuffy") ==
        "newtok newtok s newtok n ##e ##w ##t ##o s ##t ##u ##f ##f ##y");
  CHECK(tokenizer.id("newtok") == size);
  CHECK(tokenizer.pieces() == size);

  const auto check = [&](const char* content, const std::string& message) {
    json changed = document;
    changed["added_tokens"].push_back(
        {{"id", size + 2}, {"content", content}, {"normalized", true}});
    check_error([&] { from_json(changed); }, ExitCode::kBadData, message);
  };
  check("NewTok",
        "tokenizer.json: the added tokens \"newtok\" and \"NewTok\" are the same when normalized");
  check("\u0300",
        "tokenizer.json: nothing is left of the added token \"\u0300\" when it is normalized");
}

TEST_CASE("tokens are added to a vocab.txt by the files beside it", "[wordpiece]") {
  const DataFolder folder;
  const std::filesystem::path vocabulary = folder.write("vocab.txt", bytes("[UNK]\nnew\n##tok\n"));
  const auto write_config = [&](const json& tokens) {
    folder.write("tokenizer_config.json", bytes(json{{"added_tokens_decoder", tokens}}.dump()));
  };
  const auto token = [](const char* content, bool normalized) {
    return json{{"content", content}, {"normalized", normalized}, {"special", !normalized}};
  };
  const auto check = [&](const std::string& message) {
    for (const std::filesystem::path& path : {folder.path(), vocabulary})
      check_error([&] { read_vocabulary(path, true); }, ExitCode::kBadData, message);
  };
  CHECK(decoded(WordPiece(vocabulary), "newtok") == "new ##tok");
  write_config({{"3", token("newtok", true)}, {"4", token("<e>", false)}});
  for (const std::filesystem::path& path : {folder.path(), vocabulary}) {
    const WordPiece tokenizer(path);
    CHECK(tokenizer.size() == 5);
    CHECK(decoded(tokenizer, "NEWTOK anewtok <e> <E>") ==
          "newtok [UNK] newtok <e> [UNK] [UNK] [UNK]");
  }
  folder.write("added_tokens.json", bytes(R"({"newtok": 3})"));
  CHECK(WordPiece(vocabulary).size() == 5);

  folder.write("added_tokens.json", bytes(R"({"newtok": 4})"));
  check("added_tokens.json:1:12: token \"newtok\" is added as 4, and " + vocabulary.string() +
        " does not have it");
  std::filesystem::remove(folder.path() / "added_tokens.json");
  write_config({{"4", token("newtok", true)}});
  check("added token \"newtok\" has id 4, which does not fit the 3 tokens of ");
  write_config({{"1", token("newtok", true)}});
  check("added token \"newtok\" has id 1, which does not fit the 3 tokens of ");
  write_config({{"3", token("new", true)}});
  check("added token \"new\" has id 3, which does not fit the 3 tokens of ");
  // Keys of the file are in the order of texts: "10" is before "3".
  json many = json::object();
  for (int id = 3; id < 11; ++id) many[std::to_string(id)] = token(utf8('c' + id).c_str(), false);
  write_config(many);
  CHECK(WordPiece(vocabulary).token(10) == utf8('c' + 10));
  write_config({{"x", token("newtok", true)}});
  check("added_tokens_decoder: \"x\" is no id");
  write_config({{"3", {{"content", "newtok"}, {"single_word", true}}}});
  check("added token \"newtok\" sets single_word, which is not supported");
  std::filesystem::remove(folder.path() / "tokenizer_config.json");
  folder.write("added_tokens.json", bytes(R"({"newtok": 3})"));
  check("token \"newtok\" is added as 3, and " + vocabulary.string() + " does not have it");
}

TEST_CASE("the files of a tokenizer must agree", "[wordpiece]") {
  const DataFolder folder;
  json document = golden_tokenizer(), config = {{"tokenizer_class", "BertTokenizer"}};
  const auto size = static_cast<std::int32_t>(document["model"]["vocab"].size());
  document["added_tokens"].push_back({{"id", size}, {"content", "newtok"}, {"normalized", true}});
  const auto read = [&](const json& there, const json& here) {
    folder.write("tokenizer.json", bytes(there.dump()));
    folder.write("tokenizer_config.json", bytes(here.dump()));
    return WordPiece(folder.path());
  };
  const auto check = [&](const char* there, bool value, const json& here,
                         const std::string& message) {
    json changed = document, changed_config = config;
    changed["normalizer"][there] = value;
    changed_config.update(here);
    check_error([&] { read(changed, changed_config); }, ExitCode::kBadData, message);
    return changed;
  };
  CHECK(read(document, config).strip_accents());
  check("strip_accents", true, {{"strip_accents", false}},
        "strip_accents of tokenizer_config.json is false, normalizer.strip_accents of "
        "tokenizer.json is true");
  check("strip_accents", false, {{"strip_accents", nullptr}},
        "strip_accents of tokenizer_config.json is not given, which means true, "
        "normalizer.strip_accents of tokenizer.json is false");
  check("handle_chinese_chars", true, {{"tokenize_chinese_chars", false}},
        "tokenize_chinese_chars of tokenizer_config.json is false, "
        "normalizer.handle_chinese_chars of tokenizer.json is true");
  const json cased = check("lowercase", false, json::object(),
                           "do_lower_case of tokenizer_config.json is not given, which means true, "
                           "normalizer.lowercase of tokenizer.json is false");
  CHECK_FALSE(read(cased, {{"do_lower_case", false}}).strip_accents());
  // Another class reads tokenizer.json alone.
  CHECK_FALSE(read(cased, {{"tokenizer_class", "PreTrainedTokenizerFast"}}).lower_case());

  const auto added = [&](const json& token) {
    return json{{"added_tokens_decoder", {{std::to_string(size), token}}}};
  };
  CHECK(read(document, added({{"content", "newtok"}, {"normalized", true}})).size() == size + 1);
  check_error(
      [&] {
        read(document, added({{"content", "newtok"}, {"normalized", false}}));
      },
      ExitCode::kBadData,
      fmt::format("token \"newtok\" is added as {} with normalized false, and ", size));
  check_error(
      [&] {
        read(document, added({{"content", "other"}, {"normalized", true}}));
      },
      ExitCode::kBadData, "does not add it so");
  folder.write("added_tokens.json", bytes(R"({"other": 3})"));
  check_error([&] { read(document, config); }, ExitCode::kBadData,
              "token \"other\" is added as 3, and ");
}

TEST_CASE("a vocabulary is found in a folder, with its case", "[wordpiece]") {
  const DataFolder folder;
  const auto lower_case = [&] { return WordPiece(folder.path()).lower_case(); };
  check_error([&] { lower_case(); }, ExitCode::kNoInput, "neither tokenizer.json nor vocab.txt");
  check_error([&] { WordPiece(folder.path() / "no.txt"); }, ExitCode::kNoInput, "no.txt");
  folder.write("vocab.txt", bytes("[UNK]\na\n"));
  CHECK_FALSE(lower_case_of(folder.path()).has_value());
  CHECK(lower_case());
  CHECK_FALSE(WordPiece(folder.path(), false).lower_case());
  folder.write("tokenizer_config.json", bytes(R"({"do_lower_case": false})"));
  for (const std::filesystem::path& path : {folder.path(), folder.path() / "vocab.txt"}) {
    CHECK(lower_case_of(path) == false);
    CHECK_FALSE(WordPiece(path).lower_case());
  }
  CHECK_FALSE(read_vocabulary(folder.path(), true).strip_accents);
  CHECK_FALSE(lower_case_of(folder.write("words.txt", bytes("[UNK]\na\n"))).has_value());
  CHECK_FALSE(read_tokenizer(folder.path() / "words.txt", false)->lower_case());
  folder.write("tokenizer_config.json",
               bytes(R"({"strip_accents": false, "tokenize_chinese_chars": false})"));
  for (const std::filesystem::path& path : {folder.path(), folder.path() / "vocab.txt"}) {
    const Vocabulary vocabulary = read_vocabulary(path, true);
    CHECK(vocabulary.lower_case);
    CHECK_FALSE(vocabulary.strip_accents);
    CHECK_FALSE(vocabulary.separate_cjk);
  }
  folder.write("tokenizer_config.json", bytes(R"({"do_lower_case": false})"));
  json document = golden_tokenizer();
  document["normalizer"]["lowercase"] = false;
  folder.write("tokenizer.json", bytes(document.dump()));
  CHECK(lower_case_of(folder.path() / "tokenizer.json") == false);
  CHECK_FALSE(lower_case());
  CHECK(WordPiece(folder.path()).size() > 100);
  document["normalizer"]["lowercase"] = true;
  folder.write("tokenizer.json", bytes(document.dump()));
  check_error([&] { lower_case(); }, ExitCode::kBadData,
              "do_lower_case of tokenizer_config.json is false, normalizer.lowercase of "
              "tokenizer.json is true");
  // Without a name that tells, the content does.
  CHECK(WordPiece(folder.write("vocabulary", bytes(document.dump()))).size() > 100);
  CHECK(WordPiece(folder.write("words", bytes("[UNK]\n{\n"))).size() == 2);
}
