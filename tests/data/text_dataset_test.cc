#include "data/text_dataset.h"

#include <fmt/format.h>

#include <chrono>
#include <fstream>

#include "core/files.h"
#include "data/corpus.h"
#include "data/loader.h"
#include "tests/core/environment.h"
#include "tests/data/data_files.h"
#include "tests/data/tiny_vocabulary.h"

using namespace vcas;

namespace {

using Ids = std::vector<std::int32_t>;

Ids item(const TextDataset& data, std::int64_t index) {
  Batch batch;
  data.append(index, {}, batch);
  CHECK(data.rows(index) == std::ssize(batch.tokens));
  return batch.tokens;
}

// The cache is the subject of a test of its own.
struct Fixture {
  DataFolder folder;
  WordPiece tokenizer = tiny_tokenizer();

  std::unique_ptr<TextDataset> load(const std::string& text, TextOptions options = {}) const {
    options.file = folder.write_text("x.tsv", text);
    options.cache = false;
    return load_text(options, tokenizer);
  }
  void check_bad(const std::string& text, const TextOptions& options,
                 const std::string& want) const {
    check_error([&] { load(text, options); }, ExitCode::kBadData, want);
  }
};

const TextOptions kPairs{.first = "premise", .second = "hypothesis"};

}  // namespace

TEST_CASE("single texts become [CLS] a [SEP]", "[text]") {
  const Fixture f;
  const auto data = f.load("sentence\tlabel\na bing\t1\n\t0\nzzz c\t1\n");
  CHECK(data->size() == 3);
  CHECK(item(*data, 0) == Ids{kCls, kA, kB, kIng, kSep});
  CHECK(item(*data, 1) == Ids{kCls, kSep});
  CHECK(item(*data, 2) == Ids{kCls, kUnk, kC, kSep});
  CHECK(data->label(0) == 1);
  CHECK(data->label(1) == 0);
  CHECK(data->class_names() == std::vector<std::string>{"0", "1"});
  CHECK(data->item_shape() == std::vector<std::int64_t>{5});
}

TEST_CASE("pairs become [CLS] a [SEP] b [SEP] with token types", "[text]") {
  const Fixture f;
  const auto data = f.load("premise\thypothesis\tlabel\na b\tc\tyes\nd\te a b\tno\n", kPairs);
  Batch batch;
  data->append(0, {}, batch);
  data->append(1, {}, batch);
  CHECK(batch.tokens == Ids{kCls, kA, kB, kSep, kC, kSep, kCls, kD, kSep, kE, kA, kB, kSep});
  CHECK(batch.token_types == Ids{0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 1});
  CHECK(batch.offsets == std::vector<std::int64_t>{0, 6, 13});
  CHECK(batch.targets.empty());
  CHECK(data->class_names() == std::vector<std::string>{"no", "yes"});
  CHECK(data->label(0) == 1);
}

TEST_CASE("a loader packs texts without padding", "[text]") {
  const Fixture f;
  const auto data = f.load("sentence\tlabel\na\t0\na b\t1\na b c\t0\n");
  Loader loader(*data, {.batch = 2, .shuffle = false, .drop_last = false});
  const Batch& batch = loader.next();
  CHECK(batch.items == 2);
  CHECK(batch.offsets == std::vector<std::int64_t>{0, 3, 7});
  CHECK(batch.tokens == Ids{kCls, kA, kSep, kCls, kA, kB, kSep});
  CHECK(batch.labels == Ids{0, 1});
  CHECK(loader.next().offsets == std::vector<std::int64_t>{0, 5});
}

// The lengths that `tokenizers` 0.23 keeps (Encoding truncation, longest_first).
TEST_CASE("the longer text of a pair is cut first", "[text]") {
  const Fixture f;
  const auto lengths = [&](int first, int second, std::int64_t max_length) {
    std::string text = "premise\thypothesis\tlabel\n";
    for (int i = 0; i < first; ++i) text += "a ";
    text += "\t";
    for (int i = 0; i < second; ++i) text += "b ";
    TextOptions options = kPairs;
    options.items.max_length = max_length;
    options.items.labels = {"0", "1"};
    const auto data = f.load(text + "\t0\n", options);
    const Ids tokens = item(*data, 0);
    const std::pair kept(std::count(tokens.begin(), tokens.end(), kA),
                         std::count(tokens.begin(), tokens.end(), kB));
    CHECK(data->content().cut_rows == (kept.first + kept.second < first + second));
    return kept;
  };
  using Pair = std::pair<std::ptrdiff_t, std::ptrdiff_t>;
  CHECK(lengths(5, 5, 13) == Pair{5, 5});
  CHECK(lengths(2, 9, 10) == Pair{2, 5});
  CHECK(lengths(9, 2, 10) == Pair{5, 2});
  CHECK(lengths(9, 9, 11) == Pair{4, 4});
  CHECK(lengths(9, 9, 10) == Pair{3, 4});
  CHECK(lengths(10, 9, 10) == Pair{4, 3});
  CHECK(lengths(9, 10, 10) == Pair{3, 4});
  CHECK(lengths(0, 20, 10) == Pair{0, 7});
  TextOptions options;
  options.items.labels = {"0", "1"};
  options.items.max_length = 4;
  CHECK(item(*f.load("sentence\tlabel\na b c d e\t0\n", options), 0) == Ids{kCls, kA, kB, kSep});
  options.items.max_length = 2;
  check_error([&] { f.load("sentence\tlabel\na\t0\n", options); }, ExitCode::kBadConfig,
              "data.text.max_length must be above 2, the special tokens of an item, got 2");
}

TEST_CASE("labels are matched by name, or are numbers in the order of the names", "[text]") {
  const Fixture f;
  TextOptions options;
  options.items.labels = {"entailment", "neutral", "contradiction"};
  const auto data = f.load("sentence\tlabel\na\tNeutral\nb\tcontradiction\nc\t0\n", options);
  CHECK(data->content().labels == Ids{1, 2, 0});
  CHECK(data->class_names() == options.items.labels);
  f.check_bad("sentence\tlabel\na\tneutral\nb\tneutrl\n", options,
              "x.tsv:3: label \"neutrl\" is not one of entailment, neutral, contradiction; did you "
              "mean \"neutral\"?");
  f.check_bad("sentence\tlabel\na\t3\n", options, "label \"3\" is not one of");
  f.check_bad("sentence\tlabel\na\t-1\n", options, "label \"-1\" is not one of");
  f.check_bad("sentence\tlabel\na\t no\n", {}, "label \" no\" has white space around it");
  f.check_bad("sentence\tlabel\na\tno \n", {}, "label \"no \" has white space around it");
  options.items.labels = {"a", "b", "c", "d", "e"};
  f.check_bad("sentence\tlabel\na\t" + std::string(70, 'x') + "\n", options,
              "label \"" + std::string(60, 'x') + "...\" is not one of a, b, c, d, e");
  options.items.labels = {std::string(200, 'a'), std::string(200, 'b')};
  f.check_bad(
      "sentence\tlabel\na\tx\n", options,
      "label \"x\" is not one of " + std::string(200, 'a') + ", " + std::string(98, 'b') + "...");
  options.items.labels = {"yes", "Yes"};
  check_error([&] { f.load("sentence\tlabel\na\tyes\n", options); }, ExitCode::kBadConfig,
              "data.text.labels has \"Yes\" twice");
  // Where names are numbers, a number is a name; and found classes have no order to count in.
  options.items.labels = {"2", "1"};
  CHECK(f.load("sentence\tlabel\na\t1\nb\t2\n", options)->content().labels == Ids{1, 0});
  f.check_bad("sentence\tlabel\na\t0\n", options, "x.tsv:2: label \"0\" is not one of 2, 1");
  options.items = {.labels = {"no", "yes"}, .label_numbers = false};
  f.check_bad("sentence\tlabel\na\t1\n", options, "x.tsv:2: label \"1\" is not one of no, yes");
  // Found ones are one class where only their case differs, and at least two.
  const auto found = f.load("sentence\tlabel\na\tYes\nb\tno\nc\tYES\n");
  CHECK(found->class_names() == std::vector<std::string>{"Yes", "no"});
  CHECK(found->content().labels == Ids{0, 1, 0});
  f.check_bad("sentence\tlabel\na\tYes\nb\tyes\n", {},
              "x.tsv:3: \"Yes\" is the only class, and a classifier needs two");
  // "-" is none, unless it is named.
  const std::string signs = "sentence\tlabel\na\t+\nb\t-\nc\t0\n";
  f.check_bad(signs, {}, "x.tsv:3: the label \"-\" stands for none");
  const auto some = f.load(signs, {.items = {.skip_bad_labels = true}});
  CHECK(some->class_names() == std::vector<std::string>{"+", "0"});
  CHECK(some->content().skipped_rows == 1);
  CHECK(f.load(signs, {.items = {.labels = {"-", "0", "+"}}})->content().labels == Ids{2, 0, 1});
  // They are sorted as numbers where they all are.
  CHECK(f.load("sentence\tlabel\na\t10\nb\t9\nc\t10\n")->class_names() ==
        std::vector<std::string>{"9", "10"});
  const auto equal = f.load("sentence\tlabel\na\t1\nb\t01\nc\t-0\na\t0\n");
  CHECK(equal->class_names() == std::vector<std::string>{"-0", "0", "01", "1"});
  CHECK(equal->content().labels == Ids{3, 2, 0, 1});
}

TEST_CASE("a test split has no labels, a regression has targets", "[text]") {
  const Fixture f;
  const auto unlabelled = f.load("index\tsentence\n0\ta\n1\tb\n", {.label = ""});
  CHECK(unlabelled->label(0) == -1);
  TextOptions options{.first = "a", .label = "score"};
  options.items.regression = true;
  const auto regression = f.load("a\tscore\nb\t2.5\nc\t-1e-1\n", options);
  CHECK(regression->class_names().empty());
  Batch batch;
  regression->append(1, {}, batch);
  CHECK(batch.targets == std::vector<float>{-0.1f});
  CHECK(regression->label(1) == -1);
  f.check_bad("a\tscore\nb\t2.5x\n", options,
              "x.tsv:2: the target \"2.5x\" is not a number from -1e+18 to 1e+18");
  for (const char* target : {"nan", "-inf", "1e20", "1e39"})
    f.check_bad(fmt::format("a\tscore\nb\t{}\n", target), options,
                fmt::format("the target \"{}\" is not a number from", target));
}

TEST_CASE("bad tables of texts", "[text]") {
  const Fixture f;
  f.check_bad("sentence\tlabel\n", {}, "there are no rows");
  f.check_bad("sentence\tlabel\na\n", {}, "x.tsv:2: 1 column, expected 2 (\"label\" is missing)");
  const auto skipped =
      f.load("sentence\tlabel\na\nb\t1\nc\t0\n", {.table = {.skip_bad_rows = true}});
  CHECK(skipped->size() == 2);
  CHECK(skipped->content().skipped_rows == 1);
  const auto labelled = f.load("sentence\tlabel\na\tyes\nb\t-\nc\tno\nd\t\n",
                               {.items = {.labels = {"no", "yes"}, .skip_bad_labels = true}});
  CHECK(labelled->size() == 2);
  CHECK(labelled->content().labels == std::vector<std::int32_t>{1, 0});
  CHECK(labelled->content().skipped_rows == 2);
  const Error error = error_of([&] {
    load_text({.file = f.folder.path() / "none.tsv", .missing_hint = "get it"}, f.tokenizer);
  });
  CHECK(error.code() == ExitCode::kNoInput);
  CHECK(error.hint() == "get it");
}

TEST_CASE("classes are matched with a model's by name or not at all", "[text]") {
  using Names = std::vector<std::string>;
  const Names data = {"entailment", "neutral", "contradiction"};
  CHECK(match_labels(data, data, false) == Ids{0, 1, 2});
  CHECK(match_labels(data, {"CONTRADICTION", "Entailment", "neutral"}, false) == Ids{1, 2, 0});
  CHECK(match_labels({"0", "1"}, {"0", "1"}, false) == Ids{0, 1});
  // Names that differ by case alone are matched as they are.
  CHECK(match_labels({"A", "a", "b"}, {"A", "a", "b"}, false) == Ids{0, 1, 2});
  CHECK(match_labels({"A", "a", "b"}, {"b", "a", "A"}, false) == Ids{2, 1, 0});
  const auto check = [](const Names& data_names, const Names& model_names, bool given,
                        const std::string& text) {
    check_error([&] { match_labels(data_names, model_names, given); }, ExitCode::kBadConfig, text);
  };
  const std::string unclear = "cannot be matched by name, and numbers may stand for another order";
  check(data, {"LABEL_0", "LABEL_1", "LABEL_2"}, false, unclear);
  CHECK(match_labels(data, {"LABEL_0", "LABEL_1", "LABEL_2"}, true) == Ids{0, 1, 2});
  check({"0", "1", "2"}, data, false, unclear);
  check({"0", "1", "2"}, data, true, unclear);
  check(data, {"entailment", "neutral", "other"}, true, "the names differ");
  check({"no", "yes"}, data, false, "3 and 2 classes");
  check({"YES", "yes"}, {"yes", "no"}, false, "the names differ");

  const Fixture f;
  auto texts = f.load("sentence\tlabel\na\tneutral\nb\tentailment\nc\tcontradiction\n");
  CHECK(texts->content().labels == Ids{2, 1, 0});  // sorted by name
  const Ids ids =
      match_labels(texts->class_names(), {"entailment", "NEUTRAL", "contradiction"}, false);
  const RelabelledDataset same_as_model(std::move(texts), ids);
  CHECK(same_as_model.size() == 3);
  CHECK(same_as_model.label(0) == 1);
  CHECK(same_as_model.label(1) == 0);
  CHECK(same_as_model.label(2) == 2);
  CHECK(same_as_model.class_names() == data);
  Batch batch;
  same_as_model.append(1, {}, batch);
  CHECK(batch.tokens == Ids{kCls, kB, kSep});
}

TEST_CASE("a text that changes while it is read is refused and not cached", "[text][cache]") {
  const Fixture f;
  const TemporaryFolder cache;
  const EnvironmentVariable variable("VCAS_CACHE_DIR", cache.path().c_str());
  const auto path = f.folder.write_text("x.txt", "a\nb\n");
  const auto read = [&](const std::string& meanwhile) {
    return read_corpus({.files = {path}}, ContentHash(),
                       [&](const EachText& each, const TokenSink& sink) {
                         f.folder.write_text("x.txt", meanwhile);
                         each([&](const std::string&, bool) { sink(Ids{1}); });
                       });
  };
  check_error([&] { read("a\n"); }, ExitCode::kBadData,
              path.string() + ": changed while it was read");
  CHECK(std::filesystem::is_empty(cache.path()));
  f.folder.write_text("x.txt", "a\nb\n");
  CHECK_NOTHROW(read("a\nb\n"));
}

TEST_CASE("tokens are cached by what they depend on", "[text][cache]") {
  const Fixture f;
  const DataFolder cache;
  const EnvironmentVariable variable("VCAS_CACHE_DIR", cache.path().c_str());
  const auto files = [&] {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(cache.path()))
      found.push_back(entry.path());
    return found;
  };
  TextOptions options = kPairs;
  const std::string text = "premise\thypothesis\tlabel\na b\tc\tyes\nd\te a b\tno\n";
  options.file = f.folder.write_text("x.tsv", text);
  const auto load = [&] { return load_text(options, f.tokenizer)->content(); };
  const TokenContent made = load();
  REQUIRE(files().size() == 1);
  const std::filesystem::path file = files()[0];

  SECTION("a second load reads it") {
    // What was stored is given, whatever making it would give.
    std::string stored = read_file(file);
    const std::filesystem::file_time_type before = std::filesystem::last_write_time(file);
    const TokenContent again = load();
    CHECK(again.tokens == made.tokens);
    CHECK(again.offsets == made.offsets);
    CHECK(again.first_lengths == made.first_lengths);
    CHECK(again.labels == made.labels);
    CHECK(again.class_names == made.class_names);
    CHECK(std::filesystem::last_write_time(file) == before);
    bool made_anew = false;
    cached_tokens(std::stoull(file.stem().string().substr(7), nullptr, 16), [&] {
      made_anew = true;
      return TokenContent{};
    });
    CHECK_FALSE(made_anew);
  }
  SECTION("other data, options or vocabulary have other files") {
    f.folder.write_text("x.tsv", text + "a\tb\tno\n");
    load();
    CHECK(files().size() == 2);
    options.items.max_length = 64;
    load();
    CHECK(files().size() == 3);
    std::swap(options.first, options.second);
    CHECK(load().tokens != made.tokens);
    CHECK(files().size() == 4);
    const WordPiece other(
        Vocabulary{.name = "other", .tokens = {"[UNK]", "[CLS]", "[SEP]", "a"}, .unknown = 0});
    load_text(options, other);
    CHECK(files().size() == 5);
  }
  SECTION("so have all settings that decide about tokens") {
    std::vector<TextOptions> all(12, {.first = "0", .second = "1", .label = "2"});
    all[1].items.labels = {"0", "1"};
    all[2].items.labels = {"1", "0"};
    all[3].items.label_numbers = false;
    all[4].items.skip_bad_labels = true;
    all[5].items.regression = true;
    all[6].table.header = false;
    all[7].table.skip_bad_rows = true;
    all[8].table.skip_uneven_rows = true;
    all[9].table.blank_rows = true;
    all[10].first = "1";
    all[11].label = "0";
    options.file = f.folder.write_text("y.tsv", "0\t1\t2\na b\tc\t1\nd\te a b\t0\n");
    for (TextOptions& one : all) {
      one.file = options.file;
      const std::size_t before = files().size();
      load_text(one, f.tokenizer);
      CHECK(files().size() == before + 1);
      load_text(one, f.tokenizer);
      CHECK(files().size() == before + 1);
    }
    const std::size_t before = files().size();
    for (const char* name : {"z.tsv", "z.csv"})
      load_text({.file = f.folder.write_text(name, "0\na b\n"), .first = "0", .label = ""},
                f.tokenizer);
    CHECK(files().size() == before + 2);
  }
  SECTION("targets and the numbers of bad and cut rows come from it too") {
    options = {.file = f.folder.write_text("y.tsv", "sentence\tlabel\na a\t2.5\nb\n"),
               .table = {.skip_bad_rows = true},
               .items = {.regression = true, .max_length = 3}};
    load();
    std::vector<std::filesystem::file_time_type> before;
    for (const auto& path : files()) before.push_back(std::filesystem::last_write_time(path));
    CHECK(load().targets == std::vector<float>{2.5f});
    CHECK(load().skipped_rows == 1);
    CHECK(load().cut_rows == 1);
    std::vector<std::filesystem::file_time_type> after;
    for (const auto& path : files()) after.push_back(std::filesystem::last_write_time(path));
    CHECK(after == before);
  }
  SECTION("what a killed run left goes") {
    const std::filesystem::path old = cache.path() / "tokens-0000000000000007.safetensors.tmp-3";
    std::ofstream(old) << "tokens";
    std::filesystem::last_write_time(
        old, std::filesystem::file_time_type::clock::now() - std::chrono::hours(2));
    std::filesystem::remove(file);
    load();
    CHECK(files() == std::vector{file});
  }
  SECTION("a damaged file is made anew") {
    const std::string good = read_file(file);
    for (const std::size_t at :
         {std::size_t{3}, good.find("yes"), good.size() / 2, good.size() - 1}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 1);
      atomic_write(file, bad);
      CHECK(load().class_names == made.class_names);
      CHECK(load().tokens == made.tokens);
      CHECK(read_file(file) == good);
    }
    atomic_write(file, good.substr(0, good.size() / 2));
    CHECK(load().labels == made.labels);
    CHECK(read_file(file) == good);
  }
  SECTION("it may be switched off, or impossible") {
    std::filesystem::remove(file);
    options.cache = false;
    load();
    CHECK(files().empty());
    options.cache = true;
    const EnvironmentVariable nowhere("VCAS_CACHE_DIR", options.file.c_str());  // not a folder
    CHECK(load().tokens == made.tokens);
  }
}

TEST_CASE("where the cache lies", "[text][cache]") {
  const EnvironmentVariable own("VCAS_CACHE_DIR", "/x");
  CHECK(*cache_folder() == "/x");
  const EnvironmentVariable none("VCAS_CACHE_DIR", nullptr);
  const EnvironmentVariable xdg("XDG_CACHE_HOME", "/y");
  CHECK(*cache_folder() == "/y/vcas");
  const EnvironmentVariable no_xdg("XDG_CACHE_HOME", "");
  const EnvironmentVariable home("HOME", "/z");
  CHECK(*cache_folder() == "/z/.cache/vcas");
  const EnvironmentVariable no_home("HOME", nullptr);
  CHECK_FALSE(cache_folder());
}
