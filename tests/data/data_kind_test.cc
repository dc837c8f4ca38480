#include "data/data_kind.h"

#include "core/error.h"
#include "data/image_kind.h"
#include "data/synthetic.h"
#include "data/text_kind.h"
#include "tests/core/json_schema_check.h"
#include "tests/data/data_files.h"
#include "tests/data/tiny_vocabulary.h"

using namespace vcas;

namespace {

struct Config {
  DataOptions data;
  void fields(Setting& v) { v.section("data", data, "What to train on."); }
};

Config read(const std::string& text, bool saved = false,
            const std::vector<std::string>& overrides = {}) {
  Config config;
  read_config(config, {.saved = saved, .documents = {{"data.json", text}}, .overrides = overrides});
  return config;
}

}  // namespace

TEST_CASE("each kind of data has a summary and knows whether it is text", "[config]") {
  const std::vector<std::string> texts = {"glue", "lm", "mlm", "synthetic_text", "text", "wordnet"};
  for (const auto& [name, kind] : part_kinds<DataKind>()) {
    INFO(name);
    const auto made = kind.make();
    CHECK_FALSE(made->summary().empty());
    CHECK(made->facts().text == (std::ranges::count(texts, name) == 1));
    if (made->facts().text) CHECK(made->images() == nullptr);
  }
  const std::string help = config_help(Config{});
  CHECK(help.find("idx: IDX files") != std::string::npos);
  CHECK(help.find("data.text.max_length  (glue, lm, mlm, text, wordnet)") != std::string::npos);
}

TEST_CASE("facts follow from the settings", "[config]") {
  const auto facts = [](const std::string& settings) {
    return read(R"({"data": {)" + settings + "}}").data.kind->facts();
  };
  CHECK(facts(R"("type": "glue", "text": {"task": "sts-b"})").labels == LabelKind::kNumbers);
  CHECK(facts(R"("type": "glue", "text": {"task": "RTE"})").labels == LabelKind::kClasses);
  CHECK(facts(R"("type": "glue", "text": {"task": "?"})").labels == LabelKind::kAny);
  const std::string files = R"("train_file": "a", "test_file": "b")";
  CHECK(facts(R"("type": "mlm", "text": {)" + files + "}").labels == LabelKind::kMaskedWords);
  CHECK(facts(R"("type": "lm", "text": {)" + files + "}").labels == LabelKind::kNextWords);
  const DataFacts text = facts(R"("type": "text", "text": {"max_length": 9, )" + files + "}");
  CHECK(text.max_length == 9);
  CHECK(text.needs_vocabulary);
  const std::string folder = R"("type": "image_folder", "folder": "x")";
  CHECK(facts(folder).needs_size);
  CHECK_FALSE(facts(folder + R"(, "image": {"size": 8})").needs_size);
  CHECK_FALSE(facts(R"("type": "synthetic")").is_predictable);
  for (const char* type : {"mlm", "lm"})
    CHECK_FALSE(
        facts(R"("type": ")" + std::string(type) + R"(", "text": {)" + files + "}").is_predictable);
}

TEST_CASE("augmentation is what the settings say", "[config]") {
  const AugmentOptions augment =
      read(R"({"data": {"type": "cifar10", "folder": "x", "crop_padding": 3, "image": {
           "crop_scale": [0.1, 0.5], "crop_ratio": [0.8, 1.25], "cutout": 4}}})")
          .data.kind->augment();
  CHECK(augment.crop_padding == 3);
  CHECK_FALSE(augment.flip);
  CHECK(augment.cutout == 4);
  REQUIRE(augment.resized_crop);
  CHECK(augment.resized_crop->scale_low == 0.1);
  CHECK(augment.resized_crop->scale_high == 0.5);
  CHECK(augment.resized_crop->ratio_low == 0.8);
  CHECK(augment.resized_crop->ratio_high == 1.25);
}

TEST_CASE("synthetic items to evaluate on come behind those to train on", "[config]") {
  const Config config = read(R"({"data": {"type": "synthetic", "synthetic": {
      "items": 3, "eval_items": 2, "shape": [1, 2, 2]}}})");
  const ImageTransformOptions transform{.mean = {0}, .std = {1}};
  const auto opened =
      config.data.kind->open({.split = Split::kTest, .seed = 7, .transform = transform}).items;
  const auto want = make_synthetic(
      {.items = 2, .first_item = 3, .shape = {1, 2, 2}, .seed = 7, .transform = transform});
  REQUIRE(opened->size() == 2);
  Batch got, wanted;
  for (std::int64_t item = 0; item < 2; ++item) {
    opened->append(item, {}, got);
    want->append(item, {}, wanted);
    CHECK(opened->label(item) == want->label(item));
  }
  CHECK(got.values == wanted.values);
}

TEST_CASE("shapes of synthetic items that cannot be are refused", "[config]") {
  const auto check = [](const std::string& settings, const std::string& text) {
    CHECK_THROWS_WITH(read(R"({"data": {"type": "synthetic", )" + settings + "}}"),
                      ContainsSubstring(text));
  };
  check(R"("crop_padding": 2)", "data.crop_padding needs images, and data.synthetic.shape is one");
  check(R"("synthetic": {"shape": [2, 2]})", "must be [width] or [channels, height, width], got 2");
  check(R"("synthetic": {"shape": [3, 8192, 8192]})", "must have at most 67108864 values");
}

TEST_CASE("a model of pairs predicts pairs alone", "[config]") {
  const Config config = read(R"({"data": {"type": "wordnet", "text": {"task": "is_a"}}})");
  check_error([&] { config.data.kind->open_unlabelled({}, {"x.tsv"}, {}); }, ExitCode::kBadConfig,
              "the model reads pairs of texts, and data.text.second names none");
}

TEST_CASE("an evaluation set is a file of its own or a share of the other", "[config]") {
  const std::string train = R"({"data": {"type": "text", "validation_share": 0.1, "text": {)"
                            R"("train_file": "a")";
  CHECK(read(train + "}}}").data.validation_share == 0.1);
  CHECK_THROWS_WITH(
      read(train + R"(, "test_file": "b"}}})"),
      ContainsSubstring("data.validation_share is for data without an evaluation set, and "
                        "data.text.test_file names one"));
}

TEST_CASE("a table is opened with the labels and the rows that the settings take", "[text]") {
  const DataFolder folder;
  const WordPiece tokenizer = tiny_tokenizer();
  const auto opened = [&](const std::string& rows, const std::string& settings, bool skips) {
    const std::string file = folder.write_text("x.tsv", "sentence\tlabel\n" + rows).string();
    const Config config =
        read(R"({"data": {"type": "text", "text": {"cache": false, "train_file": ")" + file +
             R"(", "test_file": "y.tsv")" + settings + "}}}");
    OpenedData data = config.data.kind->open(
        {.skip_bad_rows = skips, .known_classes = {"no", "yes"}, .tokenizer = &tokenizer});
    REQUIRE(data.tokens.size() == 6);  // [CLS] and [SEP] around each text
    CHECK_FALSE(data.has_pairs);
    CHECK(data.items->class_names() == std::vector<std::string>{"no", "yes"});
    CHECK(data.items->label(0) == 1);
    CHECK(data.items->label(1) == 0);
    return data;
  };
  // The user's names have numbers; those of the training data have not.
  const std::string numbers = "a\t1\nb\tno\n", named = R"(, "labels": ["no", "yes"])";
  opened(numbers, named, false);
  check_error([&] { opened(numbers, "", false); }, ExitCode::kBadData,
              "x.tsv:2: label \"1\" is not one of no, yes");
  const OpenedData rest = opened("a\tyes\nb\tnone\nc\tno\n", "", true);
  CHECK(rest.skipped_rows == 1);
}

TEST_CASE("a configuration with the settings of all kinds is read where a run saved it",
          "[config]") {
  const std::string all = R"({"data": {"type": "cifar10", "folder": "x", "flip": true,
      "synthetic": {"items": 9, "tokens": 7}, "image": {"size": 8, "eval_folder": "val"},
      "text": {"task": "RTE", "max_length": 64, "skip_bad_rows": true}}})";
  const Config config = read(all, true);
  CHECK(config.data.kind->images()->size == 8);
  CHECK(config.data.kind->augment().flip);
  CHECK(config.data.skip_bad_rows);  // under its former name
  CHECK_THROWS_WITH(
      read(all), ContainsSubstring("\"items\" in \"data.synthetic\" is a setting of \"synthetic\" "
                                   "and \"synthetic_text\", and data.type is \"cifar10\"") &&
                     ContainsSubstring("\"eval_folder\" in \"data.image\" is a setting of "
                                       "\"image_folder\"") &&
                     ContainsSubstring("is a setting of \"glue\", \"lm\", \"mlm\", \"text\" and "
                                       "\"wordnet\", and") &&
                     ContainsSubstring("5 errors"));
  CHECK_THROWS_WITH(read(R"({"data": {"text": {"max_lenght": 64}}})"),
                    ContainsSubstring("unknown key \"max_lenght\" in \"data.text\""));
  // Another kind than that of the file, which is no mistake of the file.
  const Config other = read(R"({"data": {"type": "glue", "text": {"task": "RTE"}}})", false,
                            {"data.type=synthetic"});
  CHECK_FALSE(other.data.kind->facts().text);
}

TEST_CASE("a folder to evaluate on is idle where items are held out", "[config]") {
  const auto idle = [](const std::string& share) {
    const DataOptions data = read(R"({"data": {"type": "image_folder", "folder": "x",
        "image": {"size": 8, "eval_folder": "val"}, "validation_share": )" +
                                  share + "}}")
                                 .data;
    return data.kind->idle_settings(data);
  };
  CHECK(idle("0").empty());
  CHECK(idle("0.5") ==
        std::vector<std::string>{
            "data.image.eval_folder has no effect: data.validation_share is above 0"});
}

TEST_CASE("the schema accepts the settings of every kind in one section", "[config]") {
  const nlohmann::ordered_json schema = json_schema(Config{});
  for (const char* text : {R"({"data": {"text": {"task": "RTE", "eval_split": "train"}}})",
                           R"({"data": {"text": {"whole_words": true, "label": "x"}}})",
                           R"({"data": {"synthetic": {"shape": [3], "tokens": 5}}})"})
    CHECK(accepts(schema, nlohmann::json::parse(text)));
  CHECK_FALSE(accepts(schema, nlohmann::json::parse(R"({"data": {"text": {"shape": [3]}}})")));
}
