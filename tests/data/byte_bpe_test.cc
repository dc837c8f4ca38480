#include "data/byte_bpe.h"

#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <thread>

#include "core/files.h"
#include "data/vocabulary_trainer.h"
#include "data/wordpiece.h"
#include "tests/data/data_files.h"
#include "tests/data/utf8_text.h"
#include "tests/support/fewer_cases.h"

using namespace vcas;
using nlohmann::json;

namespace {

namespace fs = std::filesystem;
using BpeIds = std::vector<std::int32_t>;

const std::string kGoldenBpe = VCAS_SOURCE_DIR "/tests/golden/byte_bpe_";
constexpr const char* kBpeJson = "tokenizer.json";

json golden_bpe() { return json::parse(read_file(kGoldenBpe + kBpeJson)); }

ByteBpe bpe_of(const json& document) {
  return ByteBpe(parse_bpe_json(document.dump(1), "tokenizer.json"));
}

BpeIds bpe_ids(const Tokenizer& tokenizer, std::string_view text) {
  BpeIds ids;
  tokenizer.encode(text, ids);
  return ids;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (; !text.empty(); text.remove_prefix(words.back().size()))
    words.emplace_back(first_word(text));
  return words;
}

void check_bad_bpe(const json& document, const std::string& message) {
  check_error([&] { bpe_of(document); }, ExitCode::kBadData, message);
}

// The golden tokenizer.json with one value changed; a null removes it.
void check_bad_bpe(const char* pointer, const json& value, const std::string& message) {
  json document = golden_bpe();
  document[json::json_pointer(pointer)] = value;
  check_bad_bpe(document, message);
}

// With the merges a b, ab c and b c.
BpeVocabulary three_merges() {
  BpeVocabulary vocabulary{.name = "three", .tokens = byte_tokens()};
  for (const char* token : {"ab", "abc", "bc", "<|endoftext|>"}) vocabulary.tokens.push_back(token);
  const auto id = [&](const char* token) {
    return static_cast<std::int32_t>(std::ranges::find(vocabulary.tokens, token) -
                                     vocabulary.tokens.begin());
  };
  vocabulary.merges = {
      {id("a"), id("b"), id("ab")}, {id("ab"), id("c"), id("abc")}, {id("b"), id("c"), id("bc")}};
  vocabulary.added = {{.id = id("<|endoftext|>")}};
  return vocabulary;
}

BpeVocabulary learn(std::vector<std::string> lines, std::int64_t size) {
  return train_byte_bpe(each_of(std::move(lines)), size);
}

void write_files(const DataFolder& folder, const Tokenizer& tokenizer,
                 const std::vector<std::string>& without = {}) {
  for (const auto& [name, text] : tokenizer.files(64))
    if (std::ranges::find(without, name) == without.end()) folder.write_text(name, text);
}

}  // namespace

TEST_CASE("ids of hard texts are those of byte-level BPE in the tokenizers library", "[bpe]") {
  const json data = json::parse(read_file(kGoldenBpe + "ids.json"));
  json document = golden_bpe();
  REQUIRE(data["variants"].size() == 4);
  for (const json& variant : data["variants"]) {
    document["pre_tokenizer"]["add_prefix_space"] = variant["add_prefix_space"];
    const bool added = variant.contains("added_tokens");
    if (added) document["added_tokens"] = variant["added_tokens"];
    const ByteBpe tokenizer = bpe_of(document);
    const json& texts = data[added ? "added_texts" : "texts"];
    REQUIRE(variant["ids"].size() == texts.size());
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const std::string text = texts[i];
      INFO(json(text) << " " << variant["add_prefix_space"]);
      CHECK(bpe_ids(tokenizer, text) == variant["ids"][i].get<BpeIds>());
      if (!variant["add_prefix_space"]) CHECK(tokenizer.decode(bpe_ids(tokenizer, text)) == text);
    }
  }
}

// Merges of "a", "1" and "!" with any byte tell whether a code point goes on with their word.
TEST_CASE("every code point has the class of the tokenizers library", "[bpe]") {
  BpeVocabulary vocabulary{.name = "classes", .tokens = byte_tokens()};
  for (const std::string first : {"a", "1", "!"}) {
    const auto id = static_cast<std::int32_t>(std::ranges::find(vocabulary.tokens, first) -
                                              vocabulary.tokens.begin());
    for (std::int32_t byte = 0; byte < 256; ++byte) {
      vocabulary.merges.push_back({id, byte, static_cast<std::int32_t>(vocabulary.tokens.size())});
      vocabulary.tokens.push_back(first + vocabulary.tokens[static_cast<std::size_t>(byte)]);
    }
  }
  const ByteBpe tokenizer(vocabulary);
  std::string want(0x110000, 'O');
  std::istringstream runs(
      json::parse(read_file(kGoldenBpe + "ids.json"))["classes"].get<std::string>());
  std::size_t first = 0, count = 0;
  for (char kind = 0; runs >> std::hex >> first >> count >> kind;)
    want.replace(first, count, count, kind);
  CHECK(std::ranges::count(want, 'L') > 140000);
  int newer = 0;
  constexpr std::uint32_t kEnd = repetitions(0x110000);
  for (std::uint32_t point = 0; point < kEnd; ++point) {
    if (0xD800 <= point && point < 0xE000) continue;
    const std::string text = utf8(point);
    char got = 'S';
    for (const char* kind : {"aL", "1N", "!O"})
      if (bpe_ids(tokenizer, kind[0] + text).size() == text.size()) got = kind[1];
    if (got == want[point]) continue;
    // A letter or a number of Unicode 15.1 or 16, which utf8proc may not have yet.
    ++newer;
    INFO(std::hex << point << " is " << got << " here, " << want[point] << " there");
    CHECK((got == 'O' && want[point] != 'S' && point > 0x600));
  }
  CHECK(newer <= 5004);
}

TEST_CASE("words of a text are those of GPT-2's pattern", "[bpe]") {
  using Words = std::vector<std::string>;
  CHECK(words_of("It's 3 o'clock, isn't it?") ==
        Words{"It", "'s", " 3", " o", "'", "clock", ",", " isn", "'t", " it", "?"});
  CHECK(words_of("a  b\n\n c \t") == Words{"a", " ", " b", "\n\n", " c", " \t"});
  CHECK(words_of("\n\nx\r\n") == Words{"\n", "\n", "x", "\r\n"});
  CHECK(words_of("''ll 'll") == Words{"''", "ll", " '", "ll"});
}

TEST_CASE("merges go by rank, the first of a word before others", "[bpe]") {
  // The specification: the best pair of all, and the leftmost of these, in a list of tokens.
  std::mt19937 random(3);
  for (int round = 0; round < 30; ++round) {
    BpeVocabulary vocabulary{.name = "random", .tokens = byte_tokens()};
    const auto pick = [&] {
      const bool merged = vocabulary.tokens.size() > 256 && random() % 2 == 0;
      return static_cast<std::int32_t>(merged ? 256 + random() % (vocabulary.tokens.size() - 256)
                                              : 64 + random() % 2);
    };
    for (int i = 0; i < 12; ++i) {
      const std::int32_t left = pick(), right = pick();
      const std::string both = vocabulary.tokens[static_cast<std::size_t>(left)] +
                               vocabulary.tokens[static_cast<std::size_t>(right)];
      const auto known = std::ranges::find(vocabulary.tokens, both);
      const BpeMerge merge{left, right,
                           static_cast<std::int32_t>(known - vocabulary.tokens.begin())};
      if (known == vocabulary.tokens.end()) vocabulary.tokens.push_back(both);
      if (std::ranges::none_of(vocabulary.merges, [&](const BpeMerge& other) {
            return other.left == left && other.right == right;
          }))
        vocabulary.merges.push_back(merge);
    }
    std::ranges::shuffle(vocabulary.merges, random);
    const ByteBpe tokenizer(vocabulary);
    for (int i = 0; i < 60; ++i) {
      std::string text;
      for (std::size_t n = 1 + random() % 20; n > 0; --n) text += "ab"[random() % 2];
      BpeIds want;
      for (const char letter : text) want.push_back(letter == 'a' ? 64 : 65);
      for (bool merged = true; merged;) {
        merged = false;
        for (const BpeMerge& merge : vocabulary.merges) {
          const BpeIds pair = {merge.left, merge.right};
          const auto at = std::search(want.begin(), want.end(), pair.begin(), pair.end());
          if (at == want.end()) continue;
          *at = merge.token;
          want.erase(at + 1);
          merged = true;
          break;
        }
      }
      INFO(text);
      CHECK(bpe_ids(tokenizer, text) == want);
    }
  }
}

TEST_CASE("a word of a million bytes takes no quadratic time", "[bpe]") {
  const ByteBpe tokenizer(three_merges());
  std::string text;
  for (int i = 0; i < 350000; ++i) text += "abc";
  const BpeIds ids = bpe_ids(tokenizer, text);
  CHECK(ids == BpeIds(350000, tokenizer.id("abc")));
}

TEST_CASE("what was encoded is decoded to the same bytes", "[bpe]") {
  const ByteBpe tokenizer(kGoldenBpe + kBpeJson);
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (int n = 0; n < 40; ++n) {
      constexpr std::uint32_t kLimits[] = {0x80, 0x800, 0x10000, 0x110000};
      const auto point = static_cast<std::uint32_t>(random() % kLimits[random() % 4]);
      text += point < 0xD800 || point > 0xDFFF ? utf8(point) : " ";
    }
    CHECK(tokenizer.decode(bpe_ids(tokenizer, text)) == text);
  }
  // Each byte, also those that no UTF-8 has, and text that is cut.
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  std::string decoded;
  for (const std::string& token : byte_tokens())
    decoded += tokenizer.decode(BpeIds{tokenizer.id(token)});
  std::ranges::sort(decoded, {}, [](char byte) { return static_cast<unsigned char>(byte); });
  CHECK(decoded == bytes);
  CHECK(tokenizer.decode({}).empty());
  CHECK(tokenizer.decode(BpeIds{tokenizer.id("\u0120"), tokenizer.id("\u00c3"),
                                tokenizer.separator()}) == " \xC3<|endoftext|>");
}

TEST_CASE("a WordPiece joins words by blanks", "[wordpiece]") {
  const WordPiece tokenizer(VCAS_SOURCE_DIR "/tests/golden/wordpiece_vocab.txt");
  const BpeIds ids = bpe_ids(tokenizer, "Unaffable, the [MASK]");
  CHECK(tokenizer.decode(ids) == "unaffable , the [MASK]");
  CHECK(tokenizer.decode(std::span(ids).subspan(1)) == "##affable , the [MASK]");
  CHECK(tokenizer.separator() == tokenizer.sep());
}

TEST_CASE("encode of a byte-level BPE appends, from several threads too", "[bpe]") {
  const ByteBpe tokenizer(three_merges());
  BpeIds ids = {7};
  tokenizer.encode("abc", ids);
  CHECK(ids == BpeIds{7, tokenizer.id("abc")});
  const std::string text = golden_bpe().dump();
  const BpeIds want = bpe_ids(tokenizer, text);
  std::vector<BpeIds> got(4);
  std::vector<std::thread> threads;
  for (BpeIds& out : got) threads.emplace_back([&] { out = bpe_ids(tokenizer, text); });
  for (std::thread& thread : threads) thread.join();
  for (const BpeIds& out : got) CHECK(out == want);
  check_error([&] { bpe_ids(tokenizer, "ab\xC3"); }, ExitCode::kBadData, "invalid UTF-8 at byte 2");
}

TEST_CASE("tokens of a byte-level BPE are known by name and number", "[bpe]") {
  const ByteBpe tokenizer(kGoldenBpe + kBpeJson);
  CHECK(tokenizer.separator() == 0);
  CHECK(tokenizer.token(0) == "<|endoftext|>");
  CHECK(tokenizer.unk() == -1);
  CHECK(tokenizer.pieces() == tokenizer.size());
  CHECK_FALSE(tokenizer.lower_case());
  CHECK_FALSE(tokenizer.has("the quick"));
  CHECK(tokenizer.token(tokenizer.id("\u0120the")) == "\u0120the");
  check_error([&] { tokenizer.sep(); }, ExitCode::kBadData, "tokenizer.json: no token \"[SEP]\"");
  BpeVocabulary plain = three_merges();
  plain.tokens.pop_back();
  plain.added.clear();
  const Error error = error_of([&] { ByteBpe(plain).separator(); });
  CHECK(error.code() == ExitCode::kBadData);
  CHECK(std::string(error.what()) == "three: no token to stand between documents");
}

TEST_CASE("tokenizer.json of a byte-level BPE: what is wrong is said with its place", "[bpe]") {
  check_bad_bpe("/normalizer", {{"type", "NFC"}},
                "tokenizer.json:1805:16: the file has a normalizer, expected null");
  check_bad_bpe("/pre_tokenizer", nullptr, "no pre_tokenizer of type ByteLevel");
  check_bad_bpe("/pre_tokenizer/type", "Sequence",
                "pre_tokenizer is of type \"Sequence\", expected \"ByteLevel\"");
  check_bad_bpe("/pre_tokenizer/use_regex", false, "use_regex is false, and only true can be read");
  check_bad_bpe("/pre_tokenizer/add_prefix_space", nullptr,
                "the pre_tokenizer has no add_prefix_space");
  check_bad_bpe("/model/type", "Unigram", "tokenizer.json: no model of type BPE");
  for (const auto& [name, value] :
       std::initializer_list<std::pair<std::string, json>>{{"dropout", 0.1},
                                                           {"continuing_subword_prefix", "##"},
                                                           {"end_of_word_suffix", "</w>"},
                                                           {"byte_fallback", true},
                                                           {"ignore_merges", true}})
    check_bad_bpe(("/model/" + name).c_str(), value,
                  name + " of the model is " + value.dump() + ", and only its default can be read");
  check_bad_bpe("/model/vocab", nullptr, "the model has no vocab");
  check_bad_bpe("/model/merges", nullptr, "the model has no merges");
  check_bad_bpe("/model/merges/0", "ab", "\"ab\" is no merge, expected two tokens with a blank");
  check_bad_bpe("/model/merges/0", "a b c", "\"a b c\" is no merge");
  check_bad_bpe("/model/merges/0", {"a"}, "a merge must be \"a b\" or [\"a\", \"b\"]");
  check_bad_bpe("/model/merges/0", {"a", "b", "c"}, "a merge must be \"a b\" or [\"a\", \"b\"]");
  check_bad_bpe("/model/merges/0", {1, 2}, "a merge must be \"a b\" or [\"a\", \"b\"]");
  check_bad_bpe("/model/merges/0", {"a", "zzz"}, "token \"zzz\" of the merge is not in the vocab");
  check_bad_bpe("/model/merges/0", {"z", "q"}, "token \"zq\" of the merge is not in the vocab");
  check_bad_bpe("/model/merges/0", {"", "q"}, "token \"\" of the merge is not in the vocab");
  check_bad_bpe("/model/merges/0", golden_bpe()["model"]["merges"][1], "is there twice");
  check_bad_bpe("/added_tokens/0/rstrip", true, "added token \"<|endoftext|>\" sets rstrip");
  json document = golden_bpe();
  document["added_tokens"].push_back(
      {{"id", document["model"]["vocab"]["\u0120"]}, {"content", "\u0120"}});
  check_bad_bpe(document, "the added token \"\u0120\" is also a piece of words, of other bytes");
  document = golden_bpe();
  const json last = document["model"]["vocab"]["~"];
  document["model"]["vocab"].erase("~");
  document["model"]["vocab"]["[PAD]"] = last;
  check_bad_bpe(document, "the vocab has no token \"~\" for the byte 0x7e");
  document = golden_bpe();
  document["model"]["merges"][0] = {"a", " b"};
  for (const std::string token : {" b", "a b"})
    document["model"]["vocab"].emplace(token, document["model"]["vocab"].size());
  check_bad_bpe(document, "the merge to \"a b\" has characters that stand for no byte");
  check_error([] { parse_bpe_json("{\"model\": {\n", kBpeJson); }, ExitCode::kBadData,
              "tokenizer.json:2:1: ");
  for (const std::string mark : {"", "\xEF\xBB\xBF"})
    check_error([&] { parse_bpe_json(mark + "{\"model\" 1}", kBpeJson); }, ExitCode::kBadData,
                "tokenizer.json:1:10: ");
}

TEST_CASE("tokenizer.json of a byte-level BPE: what says the same", "[bpe]") {
  const std::uint64_t want = ByteBpe(kGoldenBpe + kBpeJson).fingerprint();
  json document = golden_bpe();
  document["model"].erase("type");  // as the first ones have it
  document["pre_tokenizer"].erase("use_regex");
  document["model"]["dropout"] = 0.0;
  document["model"]["end_of_word_suffix"] = "";
  document["model"]["unk_token"] = "<|endoftext|>";  // no byte needs it
  for (json& merge : document["model"]["merges"])
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  CHECK(bpe_of(document).fingerprint() == want);
}

TEST_CASE("a byte-level BPE's files say all that decides about ids", "[bpe]") {
  BpeVocabulary strange = three_merges();
  for (const char* token : {"two words", "\u00e9\u00e9", "c"}) strange.tokens.push_back(token);
  strange.tokens.back() = "<c>";
  strange.appended = 3;
  strange.added.insert(
      strange.added.begin(),
      {{.id = 262, .normalized = true}, {.id = 261, .special = false}, {.id = 260}});
  strange.add_prefix_space = true;
  const auto written_and_read = [](const ByteBpe& tokenizer,
                                   const std::vector<std::string>& without) {
    const DataFolder folder;
    write_files(folder, tokenizer, without);
    return read_tokenizer(folder.path())->fingerprint();
  };
  for (const std::vector<std::string>& without : {std::vector<std::string>{}, {"tokenizer.json"}}) {
    const ByteBpe tokenizer(strange);
    CHECK(written_and_read(tokenizer, without) == tokenizer.fingerprint());
    // None of them goes without saying.
    for (const auto change : std::initializer_list<void (*)(BpeVocabulary&)>{
             [](BpeVocabulary& v) { v.tokens.back() = "<d>"; },
             [](BpeVocabulary& v) {
               v.added.erase(v.added.begin() + 1);
               --v.appended;
               std::swap(v.tokens[261], v.tokens[262]);
               v.tokens.pop_back();
               v.added[0].id = 261;
             },
             [](BpeVocabulary& v) { v.added[0].normalized = false; },
             [](BpeVocabulary& v) { v.add_prefix_space = false; },
             [](BpeVocabulary& v) { v.merges.pop_back(); },
             [](BpeVocabulary& v) { std::swap(v.merges[0], v.merges[1]); }}) {
      BpeVocabulary other = strange;
      change(other);
      CHECK(written_and_read(ByteBpe(other), without) == ByteBpe(other).fingerprint());
      CHECK(ByteBpe(other).fingerprint() != tokenizer.fingerprint());
    }
  }
  // Without <|endoftext|> nothing names it.
  BpeVocabulary bare = three_merges();
  bare.tokens.pop_back();
  bare.added.clear();
  CHECK(written_and_read(ByteBpe(bare), {}) == ByteBpe(bare).fingerprint());
  CHECK(written_and_read(ByteBpe(bare), {"tokenizer.json"}) == ByteBpe(bare).fingerprint());
}

TEST_CASE("files of a byte-level BPE have the form of GPT-2's", "[bpe]") {
  json want = golden_bpe();
  for (json& merge : want["model"]["merges"])
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  want["post_processor"] = {{"type", "ByteLevel"},
                            {"add_prefix_space", true},
                            {"trim_offsets", false},
                            {"use_regex", true}};
  const auto files = ByteBpe(kGoldenBpe + kBpeJson).files(64);
  CHECK(json::parse(files.at("tokenizer.json")) == want);
  CHECK(json::parse(files.at("vocab.json")) == want["model"]["vocab"]);
  const auto small = ByteBpe(three_merges()).files(64);
  CHECK(small.at("merges.txt") == "#version: 0.2\na b\nab c\nb c\n");
  CHECK(json::parse(small.at("special_tokens_map.json")) ==
        json{{"bos_token", kEndOfText}, {"eos_token", kEndOfText}, {"unk_token", kEndOfText}});
  CHECK(json::parse(small.at("tokenizer_config.json"))["model_max_length"] == 64);
}

TEST_CASE("the files decide which tokenizer a folder has", "[bpe]") {
  const auto is_byte_bpe = [](const fs::path& path) {
    return dynamic_cast<const ByteBpe*>(read_tokenizer(path).get()) != nullptr;
  };
  const DataFolder folder;
  const ByteBpe tokenizer(three_merges());
  write_files(folder, tokenizer);
  CHECK(is_byte_bpe(folder.path()));
  CHECK(is_byte_bpe(folder.path() / "tokenizer.json"));
  CHECK(is_byte_bpe(folder.path() / "vocab.json"));
  CHECK(read_tokenizer(folder.path() / "vocab.json")->fingerprint() == tokenizer.fingerprint());
  const std::string text = tokenizer.files(64).at("tokenizer.json");
  CHECK(is_byte_bpe(folder.write_text("learnt", text)));
  BpeVocabulary model = three_merges();  // with a token of that name
  model.tokens.push_back("model");
  write_files(folder, ByteBpe(model), {"tokenizer.json"});
  CHECK(read_tokenizer(folder.path() / "vocab.json")->id("model") == 260);
  folder.write_text("vocab.json", text);  // a tokenizer.json of that name
  CHECK(is_byte_bpe(folder.path() / "vocab.json"));
  const DataFolder bert;
  write_files(bert, WordPiece(VCAS_SOURCE_DIR "/tests/golden/wordpiece_vocab.txt"));
  bert.write_text("vocab.json", "{}");
  bert.write_text("merges.txt", "");
  CHECK_FALSE(is_byte_bpe(bert.path()));
  CHECK_FALSE(is_byte_bpe(bert.path() / "vocab.txt"));
  fs::remove(bert.path() / "tokenizer.json");
  CHECK_FALSE(is_byte_bpe(bert.path()));
}

TEST_CASE("vocab.json and merges.txt: what is wrong", "[bpe]") {
  const DataFolder folder;
  const fs::path path = folder.path();
  const auto check = [&](const char* name, const std::string& text, const std::string& message,
                         ExitCode code = ExitCode::kBadData) {
    write_files(folder, ByteBpe(three_merges()), {"tokenizer.json"});
    if (text.empty())
      fs::remove(path / name);
    else
      folder.write_text(name, text);
    check_error([&] { read_tokenizer(path); }, code, message);
  };
  const auto config = [](const char* key, const json& value) {
    json document = json::parse(ByteBpe(three_merges()).files(64).at("tokenizer_config.json"));
    document[key] = value;
    return document.dump();
  };
  check("merges.txt", "", "merges.txt: no such file", ExitCode::kNoInput);
  check("merges.txt", "#version: 0.2\na b\n\nb c\n", "merges.txt:3: \"\" is no merge");
  check("merges.txt", "a b\nb z\n", "merges.txt:2: token \"bz\" of the merge is not in the vocab");
  check("merges.txt", "a b\r\na b\r\n",
        "merges.txt:2: the merge of \"a\" and \"b\" is there twice");
  check("merges.txt", "a \xC3\n", "merges.txt:1: invalid UTF-8");
  check("vocab.json", "{\"a\": 1, \"b\": 1}", "id 1 is that of \"a\" already");
  check("vocab.json", "[]", "vocab.json: not a JSON object");
  check("tokenizer_config.json", config("tokenizer_class", "RobertaTokenizer"),
        "tokenizer_class is \"RobertaTokenizer\", expected \"GPT2Tokenizer\"");
  check("tokenizer_config.json", config("pad_token", "<pad>"),
        "a special token is \"<pad>\", which ");
  check("tokenizer_config.json", config("pad_token", json::object()),
        "a special token is without content, which ");
  check("tokenizer_config.json", config("additional_special_tokens", {"<a>"}),
        "a special token is \"<a>\", which ");
  check("tokenizer_config.json", config("added_tokens_decoder", {{"260", {{"content", ""}}}}),
        "the content of an added token is empty");
  check("special_tokens_map.json", "{\"eos_token\": {\"content\": \"</s>\"}}",
        "a special token is \"</s>\", which ");
  fs::remove(path / "special_tokens_map.json");
  check("tokenizer_config.json", config("bos_token", "<s>"), "a special token is \"<s>\", which ");
  check("added_tokens.json", "{\"a\": 4294967360}", "must be an integer from 0 to 2147483647");
  write_files(folder, ByteBpe(three_merges()), {"tokenizer.json"});
  fs::remove(path / "added_tokens.json");
  folder.write_text("tokenizer_config.json", R"({"tokenizer_class": "GPT2TokenizerFast"})");
  CHECK_FALSE(read_tokenizer(path)->adds_blank());
  check("added_tokens.json", "{\"<a>\": 300}", "token \"<a>\" is added as 300, and ");
}

TEST_CASE("files beside a tokenizer.json of a byte-level BPE agree with it", "[bpe]") {
  const DataFolder folder;
  write_files(folder, ByteBpe(three_merges()));
  const auto check = [&](const std::string& config, const std::string& message) {
    folder.write_text("tokenizer_config.json", config);
    check_error([&] { read_tokenizer(folder.path()); }, ExitCode::kBadData, message);
  };
  check(R"({"add_prefix_space": true})", "add_prefix_space is true, and that of ");
  check(R"({"eos_token": "</s>"})", "a special token is \"</s>\", which ");
  check(R"({"added_tokens_decoder": {"1": {"content": "b"}}})", "does not add it so");
  folder.write_text("tokenizer_config.json", R"({"model_max_length": 1024})");
  CHECK(read_tokenizer(folder.path())->size() == 260);
  json document = json::parse(ByteBpe(three_merges()).files(64).at("tokenizer.json"));
  document["pre_tokenizer"]["add_prefix_space"] = true;
  folder.write_text("tokenizer.json", document.dump());
  CHECK(read_tokenizer(folder.path())->size() == 260);
  check(R"({"tokenizer_class": "GPT2Tokenizer"})",
        "add_prefix_space is not given, which means false, and that of ");
}

TEST_CASE("a byte-level BPE: bytes, merges by frequency, the token between documents", "[bpe]") {
  // Words: "low" twice, " low" 4 times, "\n" twice. Pairs: l o and o w 6, " "l 4.
  // "lo" is before "ow", then lo w 6, then " "low 4.
  const BpeVocabulary learnt = learn({"low low low\n", "low low low\n"}, 500);
  std::vector<std::string> want = byte_tokens();
  for (const char* token : {"lo", "low", "\u0120low", "<|endoftext|>"}) want.push_back(token);
  CHECK(learnt.tokens == want);
  const auto id = [&](const char* token) {
    return static_cast<std::int32_t>(std::ranges::find(want, token) - want.begin());
  };
  CHECK(learnt.merges == std::vector<BpeMerge>{{id("l"), id("o"), 256},
                                               {256, id("w"), 257},
                                               {id("\u0120"), 257, 258}});
  REQUIRE(learnt.added.size() == 1);
  CHECK(learnt.added[0].id == 259);
  CHECK(bpe_ids(ByteBpe(learnt), "low low\n<|endoftext|>") == BpeIds{257, 258, id("\u010a"), 259});
  CHECK(learn({"low low low\n", "low low low\n"}, 259).merges.size() == 2);
  const BpeVocabulary none = learn({"low low\n"}, 257);
  CHECK(none.tokens.size() == 257);
  CHECK(none.tokens.back() == "<|endoftext|>");
  CHECK(none.merges.empty());
  // Line ends and blanks are learnt too.
  CHECK(learn({"a\r\n", "b\r\n"}, 300).tokens[256] == "\u010d\u010a");
  const Error error = error_of([] { learn({"low"}, 256); });
  CHECK(error.code() == ExitCode::kBadConfig);
  CHECK(std::string(error.what()) ==
        "a vocabulary of 256 cannot hold the 256 bytes and <|endoftext|>");
  CHECK(error.hint() == "ask for 257 or more");
  check_error([] { learn({"", ""}, 300); }, ExitCode::kBadData, "there is no text to learn");
}

TEST_CASE("a byte-level BPE learnt twice is the same, and has no token twice", "[bpe]") {
  std::mt19937 random(1);
  std::vector<std::string> lines(300);
  for (std::string& line : lines) {
    for (int i = 0; i < 40; ++i) line += "aaabbc "[random() % 7];
    line += '\n';
  }
  const BpeVocabulary learnt = learn(lines, 500);
  CHECK(learnt.tokens.size() == 500);
  CHECK(std::set(learnt.tokens.begin(), learnt.tokens.end()).size() == 500);
  CHECK(ByteBpe(learn(lines, 500)).fingerprint() == ByteBpe(learnt).fingerprint());
  // The text is made of what was learnt of it.
  const ByteBpe tokenizer(learnt);
  std::size_t bytes = 0, tokens = 0;
  for (const std::string& line : lines) {
    bytes += line.size();
    tokens += bpe_ids(tokenizer, line).size();
  }
  CHECK(2 * tokens < bytes);
}
