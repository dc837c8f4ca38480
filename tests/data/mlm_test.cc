#include "data/mlm.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "data/loader.h"
#include "tests/core/environment.h"
#include "tests/data/data_files.h"
#include "tests/data/tiny_vocabulary.h"

using namespace vcas;

namespace {

using Ids = std::vector<std::int32_t>;

Batch item(const Dataset& data, std::int64_t index, const ItemDraw& draw = {}) {
  Batch batch;
  data.append(index, draw, batch);
  return batch;
}

// What the item was before it was masked.
Ids unmasked(const Batch& batch) {
  Ids tokens = batch.tokens;
  for (std::size_t i = 0; i < batch.masked_rows.size(); ++i)
    tokens[batch.masked_rows[i]] = batch.masked_labels[i];
  return tokens;
}

std::unique_ptr<MlmDataset> load(MlmOptions options) {
  options.corpus.cache = false;
  return load_mlm(options, tiny_tokenizer());
}

// One item of `rows` tokens, all kA; masks are drawn for it again and again.
MlmDataset long_item(std::int64_t rows, MlmDataset::Masking masking) {
  Ids tokens(static_cast<std::size_t>(rows), kA);
  tokens.front() = kCls;
  tokens.back() = kSep;
  return {TokenStream(std::move(tokens)), rows, std::move(masking)};
}

const MlmDataset::Masking kMasking{.mask = kMask, .separator = kSep, .vocabulary = 12};

}  // namespace

TEST_CASE("documents are joined with [SEP] and cut into items", "[mlm]") {
  const DataFolder folder;
  const auto text = folder.write_text("x.txt", "a b c d\n\ne a\nb\n");
  const auto data = load({.corpus = {.files = {text}}, .max_length = 5});
  REQUIRE(data->size() == 3);
  CHECK(data->item_shape() == std::vector<std::int64_t>{5});
  CHECK(unmasked(item(*data, 0)) == Ids{kCls, kA, kB, kC, kSep});
  CHECK(unmasked(item(*data, 1)) == Ids{kCls, kD, kSep, kE, kSep});
  CHECK(unmasked(item(*data, 2)) == Ids{kCls, kA, kSep, kB, kSep});
  CHECK(data->label(0) == -1);
  // One that ends with its item is not separated from the next one.
  const auto full = folder.write_text("full.txt", "a b c\nd\n");
  CHECK(unmasked(item(*load({.corpus = {.files = {full}}, .max_length = 5}), 1)) ==
        Ids{kCls, kD, kSep});

  const auto json =
      folder.write_text("y.jsonl", "{\"text\": \"a b c\"}\n{\"text\": \"d\", \"url\": 1}\n");
  const auto both = load({.corpus = {.files = {json, text}}, .max_length = 6});
  CHECK(unmasked(item(*both, 0)) == Ids{kCls, kA, kB, kC, kSep, kSep});
  CHECK(unmasked(item(*both, 1)) == Ids{kCls, kD, kSep, kA, kB, kSep});

  const auto tsv = folder.write_text("y.tsv", "id\ttext\nb\ta b c\nb\td\n");
  const auto csv = folder.write_text("y.csv", "a,e\n");
  CHECK(unmasked(item(*load({.corpus = {.files = {tsv}}, .max_length = 7}), 0)) ==
        Ids{kCls, kA, kB, kC, kSep, kD, kSep});
  CHECK(unmasked(item(*load({.corpus = {.files = {csv}, .text_field = "1", .header = false}}),
                      0)) == Ids{kCls, kE, kSep});
}

TEST_CASE("compressed corpora are read", "[mlm]") {
  const DataFolder folder;
  const std::string text = "a b c\nd e\n";
  const auto plain =
      load({.corpus = {.files = {folder.write_text("x.txt", text)}}, .max_length = 4});
  const auto packed =
      load({.corpus = {.files = {folder.write("y.txt.gz", gzip(Bytes(text.begin(), text.end())))}},
            .max_length = 4});
  CHECK(packed->size() == plain->size());
  CHECK(item(*packed, 1).tokens == item(*plain, 1).tokens);
}

TEST_CASE("a corpus is a file, a folder or files by a pattern", "[mlm]") {
  const DataFolder folder;
  const std::string b = "d e\n";
  folder.write_text("c4.00000.json", "{\"text\": \"a b c\"}\n");
  folder.write("c4.00001.txt.gz", gzip(Bytes(b.begin(), b.end())));
  folder.write_text(".hidden", "b b b b b\n");
  std::filesystem::create_directory(folder.path() / "deep");
  const std::string path = folder.path().string();
  const auto first = [](const std::vector<std::filesystem::path>& files) {
    return unmasked(item(*load({.corpus = {.files = files}, .max_length = 8}), 0));
  };
  const Ids all = {kCls, kA, kB, kC, kSep, kD, kE, kSep};
  CHECK(first(corpus_files(path)) == all);
  CHECK(first(corpus_files(path + "/c4.*")) == all);
  for (const char* pattern : {"/c4.00001*", "/c4.0000?.t*", "/c4.0000[1-9].txt.gz"})
    CHECK(first(corpus_files(path + pattern)) == Ids{kCls, kD, kE, kSep});
  CHECK(first(corpus_files(path + "/c4.00001.txt")) == Ids{kCls, kD, kE, kSep});
  CHECK(first(corpus_files(folder.write_text("[x].txt", "e\n"))) == Ids{kCls, kE, kSep});
  check_error([&] { corpus_files(path + "/*.csv"); }, ExitCode::kNoInput,
              "/*.csv: there are no such files");
  const DataFolder many;
  for (int i = 0; i < 16; ++i) many.write_text(std::to_string(10 + i * 7 % 16) + ".txt", "a\n");
  CHECK(std::ranges::is_sorted(corpus_files(many.path())));
  const DataFolder empty;
  check_error([&] { corpus_files(empty.path()); }, ExitCode::kNoInput, "there are no such files");
  const auto latin1 = folder.write_text("caf\xE9.txt", "a\n");
  for (const std::string& name : {path, path + "/caf*", latin1.string()})
    check_error([&] { corpus_files(name); }, ExitCode::kBadData, ".txt: the path: byte ");
}

TEST_CASE("tokens from the cache are those in memory, and sources are named", "[mlm][cache]") {
  const DataFolder folder;
  const EnvironmentVariable variable("VCAS_CACHE_DIR", (folder.path() / "cache").c_str());
  const MlmOptions options{.corpus = {.files = {folder.write_text("x.txt", "a b c d\ne a\n"),
                                                folder.write_text("y.txt", "b c\n")}},
                           .max_length = 5};
  const auto memory = load(options);
  const auto made = load_mlm(options, tiny_tokenizer()),
             cached = load_mlm(options, tiny_tokenizer());
  REQUIRE(std::filesystem::exists(folder.path() / "cache"));
  REQUIRE(memory->size() == 4);
  for (const auto* data : {made.get(), cached.get()}) {
    REQUIRE(data->size() == memory->size());
    CHECK(data->item_shape() == memory->item_shape());
    for (std::int64_t i = 0; i < memory->size(); ++i)
      CHECK(item(*data, i).tokens == item(*memory, i).tokens);
  }
  REQUIRE(cached->sources().size() == 2);
  CHECK(cached->sources()[1].path.filename() == "y.txt");
  const WordPiece turned(
      parse_vocab_txt("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ne\nd\nc\nb\na\n", "turned.txt", true));
  CHECK(unmasked(item(*load_mlm(options, turned), 0)) != unmasked(item(*memory, 0)));
  MlmOptions longer = options;
  longer.max_length = 6;
  CHECK(unmasked(item(*load_mlm(longer, tiny_tokenizer()), 0)) == unmasked(item(*load(longer), 0)));
  folder.write_text("y.txt", "b d\n");
  const auto other = load_mlm(options, tiny_tokenizer());
  CHECK(unmasked(item(*other, 3)) != unmasked(item(*memory, 3)));
  CHECK(other->sources()[1].hash != cached->sources()[1].hash);
}

TEST_CASE("a fixed share of each item is masked, 80/10/10", "[mlm]") {
  constexpr std::int64_t kRows = 102, kDraws = 4096;
  const MlmDataset data = long_item(kRows, kMasking);
  CHECK(data.masked_count(kRows) == 15);
  std::vector<std::int64_t> by_row(kRows), by_token(12);
  for (std::int64_t epoch = 0; epoch < kDraws; ++epoch) {
    const Batch batch = item(data, 0, {.seed = 7, .epoch = static_cast<std::uint64_t>(epoch)});
    REQUIRE(batch.masked_rows.size() == 15);
    REQUIRE(batch.masked_offsets == std::vector<std::int64_t>{0, 15});
    REQUIRE(unmasked(batch) == unmasked(item(data, 0)));
    for (std::size_t i = 0; i < 15; ++i) {
      const std::int32_t row = batch.masked_rows[i];
      CHECK((i == 0 || row > batch.masked_rows[i - 1]));
      ++by_row[row];
      ++by_token[batch.tokens[row]];
    }
  }
  CHECK(by_row.front() == 0);
  CHECK(by_row.back() == 0);
  for (std::int64_t row = 1; row + 1 < kRows; ++row)
    CHECK(std::abs(static_cast<double>(by_row[row]) - 0.15 * kDraws) <
          5 * std::sqrt(kDraws * 0.15 * 0.85));
  const double all = 15 * kDraws;
  const auto check_share = [&](std::int64_t count, double share) {
    CHECK(std::abs(static_cast<double>(count) - share * all) <
          5 * std::sqrt(all * share * (1 - share)));
  };
  // A random token may be any of the 12, [MASK] and the old one included.
  check_share(by_token[kMask], 0.8 + 0.1 / 12);
  check_share(by_token[kA], 0.1 + 0.1 / 12);
  check_share(by_token[kS], 0.1 / 12);
  check_share(by_token[kPad], 0.1 / 12);
}

TEST_CASE("the share is that of tokens that may be masked: separators are none", "[mlm]") {
  Ids tokens(102, kSep);
  tokens.front() = kCls;
  for (std::size_t row = 1; row < 81; row += 2) tokens[row] = kA;  // 40 documents of a word
  const MlmDataset data(TokenStream(tokens), 102, kMasking);
  CHECK(item(data, 0).masked_rows.size() == 6);
  CHECK(data.masked_count(102) == 15);
}

TEST_CASE("masks belong to seed, epoch and item", "[mlm]") {
  const DataFolder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) text += "a b c d e ";
  const auto data =
      load({.corpus = {.files = {folder.write_text("x.txt", text)}}, .max_length = 42});
  const ItemDraw draw{.seed = 3, .epoch = 5};
  const Batch first = item(*data, 4, draw);
  CHECK(item(*data, 4, draw).tokens == first.tokens);
  CHECK(item(*data, 4, {.seed = 3, .epoch = 6}).masked_rows != first.masked_rows);
  CHECK(item(*data, 4, {.seed = 4, .epoch = 5}).masked_rows != first.masked_rows);
  CHECK(item(*data, 5, draw).masked_rows != first.masked_rows);

  std::vector<std::int64_t> times(12);
  for (std::uint64_t epoch = 0; epoch < 20; ++epoch)
    for (std::int64_t i = 0; i < data->size(); ++i)
      for (const std::int32_t token : item(*data, i, {.epoch = epoch}).tokens) ++times[token];
  CHECK(times.back() > 0);  // of the vocabulary

  // In a batch rows count from its beginning, and the masks are the same ones.
  Batch batch;
  data->append(2, draw, batch);
  data->append(4, draw, batch);
  CHECK(batch.masked_offsets == std::vector<std::int64_t>{0, 6, 12});
  for (int i = 0; i < 6; ++i) {
    CHECK(batch.masked_rows[6 + i] == first.masked_rows[i] + 42);
    CHECK(batch.masked_labels[6 + i] == first.masked_labels[i]);
  }
  CHECK(batch.token_types == Ids(84, 0));

  const LoaderOptions options{.batch = 8, .seed = 11};
  Loader whole(*data, options), resumed(*data, options, 9);
  Batch want;
  for (int i = 0; i < 10; ++i) want = whole.next();
  const Batch& got = resumed.next();
  CHECK(got.tokens == want.tokens);
  CHECK(got.masked_rows == want.masked_rows);
  CHECK(got.masked_labels == want.masked_labels);
}

TEST_CASE("whole words are masked together, separators never", "[mlm]") {
  const DataFolder folder;
  std::string text;
  for (int i = 0; i < 200; ++i) text += "aings b\n";  // a ##ing ##s b
  const auto data = load({.corpus = {.files = {folder.write_text("x.txt", text)}},
                          .max_length = 102,
                          .mask_probability = 0.3,
                          .whole_words = true});
  std::int64_t masked = 0, wanted = 0;
  for (std::uint64_t epoch = 0; epoch < 200; ++epoch) {
    const Batch batch = item(*data, 3, {.seed = 1, .epoch = epoch});
    const Ids before = unmasked(batch);
    std::vector<bool> is_masked(before.size());
    for (const std::int32_t row : batch.masked_rows) is_masked[row] = true;
    for (std::size_t row = 1; row < before.size(); ++row) {
      if (before[row] == kSep) CHECK_FALSE(is_masked[row]);
      if ((before[row] == kIng || before[row] == kS) && row > 1)
        CHECK(is_masked[row] == is_masked[row - 1]);
    }
    const auto maskable = static_cast<double>(101 - std::ranges::count(before, kSep));
    const std::int64_t share = std::lround(0.3 * maskable);
    CHECK(std::ssize(batch.masked_rows) <= share);
    masked += std::ssize(batch.masked_rows);
    wanted += share;
  }
  CHECK(masked > wanted - 200);
}

TEST_CASE("an item has a masked token though no whole word fits", "[mlm]") {
  MlmDataset::Masking masking = kMasking;
  masking.continues.resize(12);
  masking.continues[kIng] = masking.continues[kS] = true;
  const auto rows_of = [&](const Ids& tokens, std::uint64_t epoch) {
    const MlmDataset data(TokenStream(tokens), std::ssize(tokens), masking);
    const Batch batch = item(data, 0, {.seed = 5, .epoch = epoch});
    CHECK(unmasked(batch) == tokens);
    CHECK(std::ssize(batch.masked_rows) <= data.masked_count(std::ssize(tokens)));
    return batch.masked_rows;
  };
  int first = 0, behind = 0;
  for (std::uint64_t epoch = 0; epoch < 64; ++epoch) {
    behind += rows_of({kCls, kA, kSep, kIng, kSep}, epoch) == Ids{3};  // [SEP] ends a word
    CHECK(rows_of({kCls, kA, kIng, kS, kSep}, epoch) == Ids{1});
    CHECK(rows_of({kCls, kA, kIng, kB, kSep}, epoch) == Ids{3});  // this word fits
    const Ids rows = rows_of({kCls, kA, kIng, kB, kS, kSep}, epoch);
    first += rows == Ids{1};
    CHECK((rows == Ids{1} || rows == Ids{3}));
  }
  CHECK(first > 10);
  CHECK(first < 54);
  CHECK(behind > 10);
  Ids long_word(15, kIng);  // 13 pieces, of which two are masked
  long_word.front() = kCls;
  long_word.back() = kSep;
  CHECK(rows_of(long_word, 0) == Ids{1, 2});
  CHECK(rows_of({kCls, kSep, kSep}, 0).empty());
}

TEST_CASE("bad rows and lines of a corpus are left out and counted where asked for", "[mlm]") {
  const DataFolder folder;
  const EnvironmentVariable variable("VCAS_CACHE_DIR", (folder.path() / "cache").c_str());
  MlmOptions options{
      .corpus = {
          .files = {folder.write_text("x.txt", "a b\nc\xFF\nd e\n"),
                    folder.write_text("y.jsonl", "{\"text\": null}\n{\"text\": \"a\"}\n{}\n")}}};
  const Error error = error_of([&] { load(options); });
  CHECK(error.what() == (folder.path() / "x.txt").string() + ":2: byte 2 is not valid UTF-8");
  CHECK_THAT(error.hint(), ContainsSubstring("data.skip_bad_rows=true leaves bad lines out"));
  check_error(
      [&] {
        load({.corpus = {.files = {folder.write("wide.txt", {'a', 0, '\n', 0})}}});
      },
      ExitCode::kBadData, "wide.txt:1: byte 2 is NUL",
      "if the text is UTF-16, iconv -f utf-16 -t utf-8 converts it; data.skip_bad_rows=true");
  options.corpus.skip_bad_rows = true;
  const auto made = load_mlm(options, tiny_tokenizer()),
             cached = load_mlm(options, tiny_tokenizer());
  for (const auto* data : {made.get(), cached.get()}) {
    CHECK(unmasked(item(*data, 0)) == Ids{kCls, kA, kB, kSep, kD, kE, kSep, kA, kSep});
    CHECK(data->stream().skipped_rows() == 3);
  }
  options.corpus.files = {folder.write_text("z.txt", "\xFF\n")};
  check_error([&] { load(options); }, ExitCode::kBadData,
              "z.txt: there is no text; bad rows left out: 1");
}

TEST_CASE("a corpus of separators alone has no token to predict", "[mlm]") {
  const DataFolder folder;
  const WordPiece literal(parse_vocab_txt("[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n", "v.txt", true));
  const auto load_text = [&](const std::string& text) {
    return load_mlm(
        {.corpus = {.files = {folder.write_text("x.txt", text)}, .cache = false}, .max_length = 4},
        literal);
  };
  check_error([&] { load_text("[SEP] [SEP]\n[SEP]\n"); }, ExitCode::kBadData,
              "x.txt: no token can be masked", "name a file that has words too");
  CHECK(load_text("[SEP] [SEP]\n[SEP] a\n")->size() == 2);
}

TEST_CASE("corpora that cannot be used", "[mlm]") {
  const DataFolder folder;
  const auto check = [&](const MlmOptions& options, ExitCode code, const std::string& text) {
    check_error([&] { load(options); }, code, text);
  };
  check({}, ExitCode::kBadConfig, "words are learned from text files, and none is named");
  check({.corpus = {.files = {folder.path() / "none.txt"}}}, ExitCode::kNoInput,
        "none.txt: no such file");
  check({.corpus = {.files = {folder.write_text("empty.txt", "\n\n")}}}, ExitCode::kBadData,
        "empty.txt: there is no text");
  check({.corpus = {.files = {folder.write_text("bad.txt", "a\nb\xFF\n")}}}, ExitCode::kBadData,
        "bad.txt:2: byte 2 is not valid UTF-8");
  check({.corpus = {.files = {folder.write_text("x.jsonl", "{\"txt\": \"a\"}\n")}}},
        ExitCode::kBadData, "x.jsonl:1: no column \"text\" among \"txt\"");
  CHECK(load({.corpus = {.files = {folder.write_text("y.jsonl",
                                                     "{\"text\": null}\n{\"text\": \"a\"}\n")},
                         .skip_bad_rows = true}})
            ->size() == 1);
  const auto good = folder.write_text("x.txt", "a\n");
  check({.corpus = {.files = {good}}, .max_length = 2}, ExitCode::kBadConfig,
        "data.text.max_length must be above 2");
  check({.corpus = {.files = {good}}, .max_length = 1100000}, ExitCode::kBadConfig,
        "data.text.max_length must be below 1048576");
  CHECK(load({.corpus = {.files = {good}}, .max_length = 1048575})->size() == 1);
  for (const double share : {0.0, 1.0})
    check({.corpus = {.files = {good}}, .mask_probability = share}, ExitCode::kBadConfig,
          "data.text.mask_probability must be above 0 and below 1, got " +
              std::to_string(static_cast<int>(share)));
}
