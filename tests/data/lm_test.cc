#include "data/lm.h"

#include "core/signals.h"
#include "data/byte_bpe.h"
#include "data/vocabulary_trainer.h"
#include "tests/core/environment.h"
#include "tests/data/data_files.h"
#include "tests/data/tiny_vocabulary.h"

using namespace vcas;

namespace {

using TokenIds = std::vector<std::int32_t>;

// Remembers what it is asked to encode, and has a token for each byte.
class Bytewise final : public Tokenizer {
 public:
  void encode(std::string_view text, TokenIds& ids) const override {
    texts.emplace_back(text);
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    return {ids.begin(), ids.end()};
  }
  const std::string& name() const override { return name_; }
  std::int32_t size() const override { return 257; }
  std::int32_t pieces() const override { return 256; }
  bool lower_case() const override { return false; }
  bool adds_blank() const override { return blank; }
  std::string_view token(std::int32_t id) const override { return id == 256 ? last : "x"; }
  bool continues_word(std::int32_t) const override { return false; }
  std::uint64_t fingerprint() const override { return 7; }
  std::int32_t find(std::string_view) const override { return -1; }
  std::int32_t find_separator() const override { return 256; }
  std::int32_t unk() const override { return -1; }
  std::map<std::string, std::string> files(std::int64_t) const override { return {}; }

  mutable std::vector<std::string> texts;
  bool blank = false;
  std::string_view last = "\n\n";

 private:
  std::string name_ = "bytewise";
};

Batch batch_of(const Dataset& data, const std::vector<std::int64_t>& items) {
  Batch batch;
  for (const std::int64_t i : items) data.append(i, {}, batch);
  return batch;
}

// All tokens, which the items have between them.
TokenIds tokens_of(const CorpusOptions& options, const Tokenizer& tokenizer) {
  const auto data = load_lm(options, 1 << 20, tokenizer);
  REQUIRE(data->size() == 1);
  const Batch batch = batch_of(*data, {0});
  TokenIds all = batch.tokens;
  all.push_back(batch.masked_labels.back());
  return all;
}

TokenIds byte_ids(const std::string& text) {
  TokenIds ids;
  for (const char c : text) ids.push_back(c == '|' ? 256 : static_cast<unsigned char>(c));
  return ids;
}

}  // namespace

TEST_CASE("each token of an item is to predict the next one", "[lm]") {
  const DataFolder folder;
  const CorpusOptions options{.files = {folder.write_text("x.txt", "a b c d e a b c")},
                              .cache = false};
  const auto data = load_lm(options, 3, tiny_tokenizer());
  REQUIRE(data->size() == 3);  // seven tokens predict one
  CHECK(data->item_shape() == std::vector<std::int64_t>{3});
  CHECK(data->classes() == 0);
  const Batch batch = batch_of(*data, {2, 0});
  CHECK(batch.tokens == TokenIds{kB, kA, kB, kC});
  CHECK(batch.masked_labels == TokenIds{kC, kB, kC, kD});
  CHECK(batch.masked_rows == TokenIds{0, 1, 2, 3});
  CHECK(batch.offsets == std::vector<std::int64_t>{0, 1, 4});
  CHECK(batch.masked_offsets == batch.offsets);
  CHECK(batch.token_types == TokenIds(4, 0));
  CHECK(load_lm(options, 7, tiny_tokenizer())->size() == 1);
  CHECK(load_lm(options, 100, tiny_tokenizer())->item_shape() == std::vector<std::int64_t>{7});
}

TEST_CASE("documents are files, lines or rows, with a separator between them", "[lm]") {
  const DataFolder folder;
  const auto x = folder.write_text("x.txt", "a b\r\n\n  c\nd");
  const auto y = folder.write_text("y.txt", "e\n");
  const Bytewise tokenizer;
  CorpusOptions options{.files = {x, y}, .whole_files = true, .cache = false};
  CHECK(tokens_of(options, tokenizer) == byte_ids("a b\n\n  c\nd\n|e\n"));
  options.whole_files = false;
  CHECK(tokens_of(options, tokenizer) == byte_ids("a b|  c|d|e"));
  options.whole_files = true;
  options.files = {folder.write_text("z.jsonl", "{\"text\": \"a\\nb\"}\n{\"text\": \"c\"}\n"), y};
  CHECK(tokens_of(options, tokenizer) == byte_ids("a\nb|c|e\n"));
}

TEST_CASE("a file is encoded in parts that end with a word before white space", "[lm]") {
  const DataFolder folder;
  const std::string text =
      "\none\n\n two \n\tthree\nfour\u3000\nfive\u00A0\n\u201Csix\u201D\nseven\n\n";
  const Bytewise tokenizer;
  const CorpusOptions options{
      .files = {folder.write_text("x.txt", text)}, .whole_files = true, .cache = false};
  CHECK(tokens_of(options, tokenizer) == byte_ids(text));
  CHECK(tokenizer.texts ==
        std::vector<std::string>{"\none", "\n\n two", " \n\tthree",
                                 "\nfour\u3000\nfive\u00A0\n\u201Csix\u201D\nseven", "\n\n"});
}

// Time in the square of the blank lines would be minutes.
TEST_CASE("a file may have very many blank lines", "[lm]") {
  const DataFolder folder;
  const std::string blank(300000, '\n'), text = "a" + blank + "b\u3000" + blank + "c" + blank;
  const Bytewise tokenizer;
  const CorpusOptions options{
      .files = {folder.write_text("x.txt", text)}, .whole_files = true, .cache = false};
  CHECK((tokens_of(options, tokenizer) == byte_ids(text)));
  CHECK((tokenizer.texts == std::vector<std::string>{"a", blank + "b\u3000" + blank + "c", blank}));
}

TEST_CASE("a signal ends the reading of a corpus, whatever its lines", "[lm]") {
  const DataFolder folder;
  {
    const SignalHandlers handlers;
    ::raise(SIGTERM);
    for (const char* name : {"x.txt", "x.tsv"})
      check_error(
          [&] {
            load_lm({.files = {folder.write_text(name, "text\na\n\xFF\n")},
                     .whole_files = true,
                     .cache = false},
                    8, tiny_tokenizer());
          },
          ExitCode::kStopped, "before there was anything to save");
  }
  const SignalHandlers asks_no_more;
  CHECK(stop_signal() == 0);
}

// GPT-2's pattern looks at what is behind white space, which a cut must not hide.
TEST_CASE("parts of a file have the tokens of the whole", "[lm]") {
  const DataFolder folder;
  const std::string text = "a b \n b\n\n\na\n \n  b \u3000\nb\u3000\na\n\n a\n";
  const auto lines = [left = 3, &text](std::string& line) mutable {
    line = text;
    return left-- > 0;
  };
  const ByteBpe tokenizer(train_byte_bpe(lines, 300));
  TokenIds whole;
  tokenizer.encode(text, whole);
  CHECK(whole.size() < text.size() - 4);  // some of its white space is merged
  const CorpusOptions options{
      .files = {folder.write_text("x.txt", text)}, .whole_files = true, .cache = false};
  CHECK(tokens_of(options, tokenizer) == whole);
}

TEST_CASE("a document that begins with white space alone is separated too", "[lm]") {
  const DataFolder folder;
  const CorpusOptions options{
      .files = {folder.write_text("x.txt", "a\n"), folder.write_text("y.txt", "\n\n"),
                folder.write_text("z.txt", "\n b\n")},
      .whole_files = true,
      .cache = false};
  CHECK(tokens_of(options, tiny_tokenizer()) == TokenIds{kA, kSep, kB});
  // WordPiece drops control characters, and so the first part of this one.
  const CorpusOptions control{
      .files = {folder.write_text("x.txt", "a\n"), folder.write_text("y.txt", "\x01\nb\n")},
      .whole_files = true,
      .cache = false};
  CHECK(tokens_of(control, tiny_tokenizer()) == TokenIds{kA, kSep, kB});
}

TEST_CASE("tokens of next words come from the cache, whatever the length of items", "[lm][cache]") {
  const DataFolder folder;
  const EnvironmentVariable variable("VCAS_CACHE_DIR", (folder.path() / "cache").c_str());
  const CorpusOptions options{.files = {folder.write_text("x.txt", "a b c d e\n")}};
  const Bytewise tokenizer;
  load_lm(options, 3, tokenizer);
  CHECK(tokenizer.texts.size() == 1);
  const auto longer = load_lm(options, 4, tokenizer);
  CHECK(tokenizer.texts.size() == 1);
  CHECK(batch_of(*longer, {0}).tokens == byte_ids("a b "));
  REQUIRE(longer->sources().size() == 1);
  CHECK(longer->sources()[0].path.filename() == "x.txt");
  CorpusOptions whole = options;
  whole.whole_files = true;
  load_lm(whole, 4, tokenizer);
  CHECK(tokenizer.texts.size() == 3);
  CHECK(batch_of(*load_lm(options, 4, tiny_tokenizer()), {0}).tokens == TokenIds{kA, kB, kC, kD});
  // How a table is read decides too.
  const std::string table = "text\t1\nab\tcd\n";
  const auto read = [&](const char* name, const char* field, bool header) {
    const auto data =
        load_lm({.files = {folder.write_text(name, table)}, .text_field = field, .header = header},
                99, tokenizer);
    return tokenizer.decode(batch_of(*data, {0}).tokens);
  };
  CHECK(read("x.txt", "1", true).starts_with("text\t1"));
  CHECK(read("x.tsv", "1", true) == "c");
  CHECK(read("x.tsv", "text", true) == "a");
  CHECK(read("x.tsv", "1", false).starts_with("1"));
}

TEST_CASE("texts that predict nothing", "[lm]") {
  const DataFolder folder;
  const auto check = [&](const std::string& text, const std::string& what) {
    check_error(
        [&] {
          load_lm({.files = {folder.write_text("x.txt", text)}, .cache = false}, 8,
                  tiny_tokenizer());
        },
        ExitCode::kBadData, what);
  };
  check("a\n", "x.txt: a single token, which no other predicts");
  check("\n\n", "x.txt: there is no text");
  check("a b\nb\xFF\n", "x.txt:2: byte 2 is not valid UTF-8");
  Bytewise blank;
  blank.blank = true;
  check_error([&] { load_lm({.whole_files = true}, 8, blank); }, ExitCode::kBadConfig,
              "bytewise adds a blank before each text, and whole files are encoded in parts");
  Bytewise lines;
  for (const char* last : {"\nUser:\n", "User:\nYou:", "<|user|> ", " x\v"}) {
    lines.last = last;
    check_error([&] { load_lm({.whole_files = true}, 8, lines); }, ExitCode::kBadConfig,
                "bytewise: token 256 has a line end or a last blank behind a word, and whole files "
                "are encoded in parts that end there",
                "data.text.documents=lines");
  }
  check_error([&] { load_lm({.cache = false}, 8, tiny_tokenizer()); }, ExitCode::kBadConfig,
              "words are learned from text files, and none is named");
}
