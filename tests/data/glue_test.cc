#include "data/glue.h"

#include <algorithm>

#include "core/files.h"
#include "tests/data/data_files.h"
#include "tests/data/tiny_vocabulary.h"

using namespace vcas;

namespace {

using Ids = std::vector<std::int32_t>;

// The first lines of the official files, with texts of the tiny vocabulary.
struct OfficialFile {
  std::string task;
  GlueSplit split;
  std::string file, text;
  Ids tokens;          // of the last row
  std::int32_t label;  // of the last row, -1: none
  std::int64_t rows = 2;
};

const Ids kPair = {kCls, kC, kSep, kD, kIng, kSep};
const std::string kMnliHead =
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
    "sentence1_parse\tsentence2_parse\tsentence1\tsentence2\t";
const std::string kMnliRow = "0\t1\t1n\tfiction\t( a )\t( b )\t(R a)\t(R b)\t";

const std::vector<OfficialFile> kFiles = {
    {"CoLA",
     GlueSplit::kTrain,
     "train.tsv",
     "gj04\t1\t\ta\ngj04\t0\t*\tb c\n",
     {kCls, kB, kC, kSep},
     0},
    {"CoLA", GlueSplit::kDev, "dev.tsv", "gj04\t0\t*\tb\ngj04\t1\t\tc\n", {kCls, kC, kSep}, 1},
    {"CoLA", GlueSplit::kTest, "test.tsv", "index\tsentence\n0\ta\n1\tb\n", {kCls, kB, kSep}, -1},
    {"SST-2",
     GlueSplit::kTrain,
     "train.tsv",
     "sentence\tlabel\na \t0\nb c \t1\n",
     {kCls, kB, kC, kSep},
     1},
    {"SST-2", GlueSplit::kTest, "test.tsv", "index\tsentence\n0\ta\n1\tb\n", {kCls, kB, kSep}, -1},
    {"MRPC", GlueSplit::kTrain, "train.tsv",
     "\xEF\xBB\xBFQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\ta\tb\r\n"
     "0\t9\t10\tc\tding\r\n",
     kPair, 0},
    {"MRPC", GlueSplit::kTest, "test.tsv",
     "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t7\t8\ta\tb\n1\t9\t10\tc\tding\n", kPair, -1},
    {"STS-B", GlueSplit::kDev, "dev.tsv",
     "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
     "0\tmain\tx\t2012\t0\tnone\tnone\ta\tb\t5.000\n0\tmain\tx\t2012\t0\tnone\tnone\tc\tding\t1."
     "25\n",
     kPair, -1},
    {"QQP", GlueSplit::kTrain, "train.tsv",
     "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\ta\tb\t0\n4\t5\t6\tc\n"
     "7\t8\t9\tc\tding\t1\n",
     kPair, 1},
    {"QQP", GlueSplit::kTest, "test.tsv", "id\tquestion1\tquestion2\n0\ta\tb\n1\tc\tding\n", kPair,
     -1},
    {"MNLI", GlueSplit::kTrain, "train.tsv",
     kMnliHead + "label1\tgold_label\n" + kMnliRow + "\"a\tb\tneutral\tneutral\n" + kMnliRow +
         "c\tding\tneutral\tcontradiction\n",
     kPair, 2},
    {"MNLI", GlueSplit::kDev, "dev_matched.tsv",
     kMnliHead + "label1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label\n" + kMnliRow +
         "c\tding\tneutral\tneutral\tneutral\tneutral\tneutral\tentailment\n",
     kPair, 0, 1},
    {"MNLI", GlueSplit::kDevMismatched, "dev_mismatched.tsv",
     kMnliHead + "label1\tgold_label\n" + kMnliRow + "c\tding\tneutral\tneutral\n", kPair, 1, 1},
    {"MNLI", GlueSplit::kTest, "test_matched.tsv",
     kMnliHead.substr(0, kMnliHead.size() - 1) + "\n" + kMnliRow + "c\tding\n", kPair, -1, 1},
    {"MNLI", GlueSplit::kTestMismatched, "test_mismatched.tsv",
     kMnliHead.substr(0, kMnliHead.size() - 1) + "\n" + kMnliRow + "c\tding\n", kPair, -1, 1},
    {"QNLI", GlueSplit::kTrain, "train.tsv",
     "index\tquestion\tsentence\tlabel\n0\ta\tb\tnot_entailment\n1\tc\tding\tentailment\n", kPair,
     0},
    {"RTE", GlueSplit::kDev, "dev.tsv",
     "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n1\tc\tding\tnot_entailment\n", kPair,
     1},
    {"WNLI", GlueSplit::kTrain, "train.tsv",
     "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t0\n1\tc\tding\t1\n", kPair, 1},
};

}  // namespace

TEST_CASE("the official files of all nine tasks are read", "[glue]") {
  const WordPiece tokenizer = tiny_tokenizer();
  for (const OfficialFile& official : kFiles) {
    INFO(official.task << " " << official.file);
    const DataFolder folder;
    folder.write_text(official.file, official.text);
    const auto data = load_glue(
        {.task = official.task, .folder = folder.path(), .split = official.split, .cache = false},
        tokenizer);
    CHECK(data->size() == official.rows);
    Batch batch;
    data->append(data->size() - 1, {}, batch);
    CHECK(batch.tokens == official.tokens);
    CHECK(data->label(data->size() - 1) == official.label);
    CHECK(data->class_names() == glue_task(official.task).labels);
    if (official.task == "STS-B") CHECK(batch.targets == std::vector<float>{1.25f});
    CHECK(data->content().skipped_rows == (official.task == "QQP" && official.label == 1 ? 1 : 0));
  }
  for (const GlueTask& task : glue_tasks())
    CHECK(std::any_of(kFiles.begin(), kFiles.end(),
                      [&](const OfficialFile& file) { return file.task == task.name; }));
}

TEST_CASE("blank lines are no rows, and bad rows of QQP are counted", "[glue]") {
  const WordPiece tokenizer = tiny_tokenizer();
  const DataFolder folder;
  const auto load = [&](const std::string& task, GlueSplit split, const std::string& text) {
    folder.write_text(split == GlueSplit::kTest ? "test.tsv" : "train.tsv", text);
    return load_glue({.task = task, .folder = folder.path(), .split = split, .cache = false},
                     tokenizer);
  };
  for (const char* end : {"", "\n", "\n\n", "\r\n\r\n\r\n"})
    for (const GlueSplit split : {GlueSplit::kTrain, GlueSplit::kTest}) {
      const std::string text =
          "index\tsentence1\tsentence2\tlabel\n1\ta\tb\tentailment\n\n2\tc\td\t";
      CHECK(load("RTE", split, text + "not_entailment" + end)->size() == 2);
    }
  const std::string questions = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n";
  const std::string rows =
      "1\t2\t3\ta\tb\t0\n4\t5\t6\tc\n7\t8\t9\tc\td\te\t1\n7\t8\t9\tc\td\t1\n\n";
  const auto data = load("QQP", GlueSplit::kTrain, questions + rows);
  CHECK(data->size() == 2);
  CHECK(data->content().skipped_rows == 2);
  check_error([&] { load("QQP", GlueSplit::kTrain, questions + rows + "7\t8\t9\tc\td\xFF\t1\n"); },
              ExitCode::kBadData, "train.tsv:7: byte 10 is not valid UTF-8");
  check_error([&] { load("QQP", GlueSplit::kTrain, questions + "1\t2\n"); }, ExitCode::kBadData,
              "train.tsv:2: there are no rows; bad rows left out: 1");
  // A submission has a line for each row.
  check_error([&] { load("QQP", GlueSplit::kTest, "id\tquestion1\tquestion2\n0\ta\n"); },
              ExitCode::kBadData, "test.tsv:2: 2 columns, expected 3");
}

TEST_CASE("bad rows and labels are left out where asked for, but for test rows", "[glue]") {
  const WordPiece tokenizer = tiny_tokenizer();
  const DataFolder folder;
  const auto load = [&](GlueSplit split) {
    return load_glue({.task = "SST-2",
                      .folder = folder.path(),
                      .split = split,
                      .max_length = 3,
                      .skip_bad_rows = true,
                      .cache = false},
                     tokenizer);
  };
  folder.write_text("train.tsv", "sentence\tlabel\na b\t1\nc\t2\nd\ne\t0\n");
  const auto data = load(GlueSplit::kTrain);
  CHECK(data->content().tokens == Ids{kCls, kA, kSep, kCls, kE, kSep});
  CHECK(data->content().skipped_rows == 2);
  folder.write_text("test.tsv", "index\tsentence\n0\ta\n1\n");
  check_error([&] { load(GlueSplit::kTest); }, ExitCode::kBadData,
              "test.tsv:3: 1 column, expected 2");
}

TEST_CASE("glue tasks are found by name", "[glue]") {
  CHECK(glue_tasks().size() == 9);
  CHECK(glue_task("sst2").name == "SST-2");
  CHECK(glue_task("sts_b").regression());
  CHECK(glue_task("MNLI").labels[1] == "neutral");
  const Error error = error_of([] { glue_task("MNIL"); });
  CHECK(error.code() == ExitCode::kBadConfig);
  CHECK(std::string(error.what()) ==
        "there is no GLUE task \"MNIL\"; the tasks are CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, "
        "RTE, WNLI");
  CHECK(error.hint() == "did you mean \"MNLI\"?");
}

TEST_CASE("glue splits are found by name", "[glue]") {
  CHECK(glue_split("dev_matched") == GlueSplit::kDev);
  CHECK(glue_split("diagnostic") == GlueSplit::kDiagnostic);
  const Error error = error_of([] { glue_split("dve"); });
  CHECK(error.code() == ExitCode::kUsage);
  CHECK(std::string(error.what()) == "there is no split \"dve\"");
  CHECK(error.hint() ==
        "the splits are train, dev, dev_matched, dev_mismatched, test, test_mismatched and "
        "diagnostic");
}

TEST_CASE("missing glue files are met with the command that gets them", "[glue]") {
  const DataFolder folder;
  const WordPiece tokenizer = tiny_tokenizer();
  const auto load = [&](const GlueOptions& options) { load_glue(options, tokenizer); };
  const Error error = error_of([&] { load({.task = "RTE", .folder = folder.path()}); });
  CHECK(error.code() == ExitCode::kNoInput);
  CHECK(std::string(error.what()) ==
        (folder.path() / "train.tsv").string() + ": no such file, nor with .gz, .xz or .zst");
  CHECK(error.hint() == "tools/get_data RTE " + folder.path().string());
  CHECK(error_of([&] { load({.task = "sst2"}); }).hint() == "tools/get_data SST-2 glue/SST-2");
  check_error([&] { load({.task = "RTE", .split = GlueSplit::kDevMismatched}); },
              ExitCode::kBadConfig, "RTE has no mismatched split; only MNLI has");
  CHECK_FALSE(has_glue_split(glue_task("RTE"), folder.path(), GlueSplit::kDiagnostic));
  folder.write_text("train.tsv", kMnliHead + "label1\n" + kMnliRow + "a\tb\tneutral\n");
  const Error column = error_of([&] { load({.folder = folder.path()}); });
  CHECK_THAT(
      column.what(),
      ContainsSubstring("train.tsv:1: no column \"gold_label\" among \"index\", \"promptID\""));
  CHECK(column.hint() ==
        "is this the official file? tools/get_data MNLI " + folder.path().string() + " gets it");
}

TEST_CASE("submissions are what the server takes", "[glue]") {
  const DataFolder folder;
  const auto read = [&](const std::string& name) { return read_file(folder.path() / name); };
  const Ids predictions = {0, 2, 1};
  const std::vector<std::string> model_order = {"contradiction", "entailment", "neutral"};
  const GlueTask& mnli = glue_task("MNLI");
  write_glue_submission(folder.path(), mnli, GlueSplit::kTest, predictions, model_order);
  write_glue_submission(folder.path(), mnli, GlueSplit::kTestMismatched, predictions, mnli.labels);
  CHECK(read("MNLI-m.tsv") == "index\tprediction\n0\tcontradiction\n1\tneutral\n2\tentailment\n");
  CHECK(read("MNLI-mm.tsv") == "index\tprediction\n0\tentailment\n1\tcontradiction\n2\tneutral\n");
  write_glue_submission(folder.path(), mnli, GlueSplit::kDevMismatched, Ids{0}, mnli.labels);
  CHECK(read("MNLI-mm.tsv") == "index\tprediction\n0\tentailment\n");
  write_glue_submission(folder.path(), glue_task("CoLA"), GlueSplit::kTest, Ids{0, 1},
                        {"acceptable", "unacceptable"});
  CHECK(read("CoLA.tsv") == "index\tprediction\n0\t1\n1\t0\n");
  const std::vector<float> scores = {-0.25f, 2.71828f, 5.5f};
  write_glue_submission(folder.path(), glue_task("STS-B"), scores);
  CHECK(read("STS-B.tsv") == "index\tprediction\n0\t0.000\n1\t2.718\n2\t5.000\n");
}
