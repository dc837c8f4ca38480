#include <fmt/format.h>

#include <algorithm>

#include "tests/support/catch.h"
#include "tests/tools/tiny_text.h"

namespace fs = std::filesystem;

TEST_CASE("each line of a table has its prediction, a blank one as an empty text", "[text]") {
  const TinyText tiny;
  succeeded(tiny.train({"run.folder=out", "train.steps=1"}));
  const auto lines = [&](const std::string& name, const std::string& text) {
    write_text(tiny.path() / name, text);
    const Outcome outcome =
        succeeded(tiny.vcas({"predict", "--model", "out/last", "--input", name}));
    CHECK(outcome.err.empty());
    return std::count(outcome.out.begin(), outcome.out.end(), '\n') - 1;
  };
  for (const std::string end : {"\n", "\r\n"}) {
    const std::string three = "id\tsentence" + end + "1\ta" + end + end + "2\tb";
    CHECK(lines("x.tsv", three) == 3);
    CHECK(lines("x.tsv", three + end) == 3);
    CHECK(lines("x.tsv", three + end + end) == 4);
    CHECK(lines("x.tsv", "sentence" + end + "a" + end + end) == 2);
    CHECK(lines("x.jsonl", "{\"sentence\": \"a\"}" + end + end) == 2);
  }
  // An empty text is predicted as one that is written out.
  write_text(tiny.path() / "x.tsv", "id\tsentence\n\n1\t\n");
  const std::string out = tiny.vcas({"predict", "--model", "out/last", "--input", "x.tsv"}).out;
  const std::size_t second = out.find("\n1\t");
  CHECK(out.substr(out.find("\n0\t") + 3, second - out.find("\n0\t") - 3) ==
        out.substr(second + 3, out.size() - second - 4));

  for (const char* name : {"train.tsv", "test.tsv"})
    write_text(tiny.path() / name, content(tiny.path() / name) + "\r\n\n");
  CHECK(contains(tiny.train({"--validate"}).out, "64 train, 16 test, 2 classes: "));
  CHECK(contains(tiny.vcas({"eval", "--model", "out/last"}).out, "(16 items in "));
}

TEST_CASE("a blank line of a GLUE file is no row", "[text]") {
  const TinyText tiny;
  const fs::path glue = tiny.path() / "glue/SST-2";
  fs::create_directories(glue);
  const std::string labelled = "sentence\tlabel\na a\t1\nb b\t0\na\t1\nb\t0\n";
  write_text(glue / "train.tsv", labelled);
  write_text(glue / "dev.tsv", labelled + "\n");
  write_text(glue / "test.tsv", "index\tsentence\r\n0\ta\r\n1\tb\r\n2\tc\r\n\r\n");
  succeeded(tiny.train({"data.type=glue", "data.text.task=SST-2", "data.text.labels=[]",
                        "run.folder=out", "train.steps=1", "train.batch_size=2"}));
  succeeded(tiny.vcas({"predict", "--model", "out", "--glue-submission", "submission"}));
  const std::string lines = content(tiny.path() / "submission/SST-2.tsv");
  CHECK(std::count(lines.begin(), lines.end(), '\n') == 4);
}

TEST_CASE("rows that are left out are counted wherever data are read", "[text]") {
  const TinyText tiny;
  const fs::path glue = tiny.path() / "glue/QQP";
  fs::create_directories(glue);
  std::string rows = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n";
  for (int i = 0; i < 8; ++i) rows += fmt::format("1\t2\t3\ta a\tb\t{}\n", i % 2);
  write_text(glue / "train.tsv", rows + "1\t2\t3\ta\n1\t2\t3\ta\tb\tc\t1\n");
  write_text(glue / "dev.tsv", rows + "1\t2\t3\ta\n");
  const std::vector<std::string> settings = {"data.type=glue", "data.text.task=QQP",
                                             "data.text.labels=[]", "train.steps=3"};
  const auto run = [&](const std::vector<std::string>& arguments) {
    return tiny.train(with(arguments, settings));
  };
  const Outcome valid = run({"--validate", "run.folder=out"});
  CHECK(contains(valid.out, "8 train, 8 test, 2 classes: "));
  const std::string trained_on = "bad rows left out of the training data: 2",
                    tested_on = "bad rows left out of the evaluation data: 1";
  CHECK(valid.err == "warning: " + trained_on + "\nwarning: " + tested_on + "\n");
  const Outcome trained = run({"run.folder=out"});
  CHECK(contains(trained.err, "\n" + valid.err));
  for (const std::string& text : {trained_on, tested_on}) {
    CHECK(trained.err.find(text) == trained.err.rfind(text));
    CHECK(contains(content(tiny.path() / "out/log.txt"), "  warning: " + text + "\n"));
  }
  CHECK(noted_warnings(tiny.path() / "out/metrics.jsonl") == std::vector{trained_on, tested_on});
  CHECK(tiny.vcas({"eval", "--model", "out/last"}).err == "warning: " + tested_on + "\n");
  CHECK(contains(run({"--validate", "data.text.first=question2"}).err,
                 "\nwarning: data.text.first has no effect: training reads the columns of the "
                 "task\n"));

  write_text(tiny.path() / "bad.txt", content(tiny.path() / "corpus.txt") + "a\xFF\n");
  const auto masked = [&](const std::string& skip) {
    return tiny.train({"--validate", "data.type=mlm", "model.head=mlm", "data.text.labels=[]",
                       "train.batch_size=1", "data.text.train_file=bad.txt",
                       "data.text.test_file=corpus.txt", "data.skip_bad_rows=" + skip});
  };
  CHECK(masked("true").err == "warning: bad rows left out of the training data: 1\n");
  check_message(
      masked("false"), 65,
      "error: bad.txt:3: byte 2 is not valid UTF-8\n  hint: if the text is Latin-1, iconv -f "
      "latin1 -t utf-8 converts it; data.skip_bad_rows=true leaves bad lines out\n");
}

TEST_CASE("texts that are cut are counted, and many of them are worth a warning", "[text]") {
  const TinyText tiny;
  const std::string head = "sentence\tlabel\n", whole = "a b c a b c a b c a\tgood\n",
                    cut = "a b c a b c a b c a b\tbad\n";
  const auto validate = [&](int long_ones) {
    std::string table = head;
    for (int i = 0; i < 40; ++i) table += i < long_ones ? cut : whole;
    write_text(tiny.path() / "train.tsv", table);
    return tiny.train({"--validate", "run.folder=out"});
  };
  const std::string told = " of 40 training texts are cut to 12 tokens (data.text.max_length)\n";
  const Outcome few = validate(4);
  CHECK(few.err.empty());
  CHECK(contains(few.out, "\n    note   4" + told));
  const Outcome many = validate(5);
  CHECK(many.err == "warning: 5" + told);
  CHECK_FALSE(contains(many.out, "note"));
}

TEST_CASE("exact training pads texts to the longest of its own", "[text]") {
  const TinyText tiny;
  const std::string head = "sentence\tlabel\n";
  std::string table = head;
  for (int i = 0; i < 8; ++i) table += "a b\tbad\n";
  write_text(tiny.path() / "train.tsv", table);
  const auto padded = [&](const std::string& longest) {
    write_text(tiny.path() / "test.tsv", head + "a\tbad\n" + longest + "\tgood\n");
    succeeded(tiny.train({"train.steps=1", "run.folder=out", "--overwrite"}));
    const std::string metrics = content(tiny.path() / "out/metrics.jsonl");
    return nlohmann::json::parse(metrics.substr(0, metrics.find('\n')))["padded_step_flops"]
        .get<double>();
  };
  const double flops = padded("b");
  CHECK(flops > 0);
  CHECK(padded("b b b b b b b b b b") == flops);
}

TEST_CASE("a class for almost every row is doubtful", "[text]") {
  const TinyText tiny;
  const auto warned = [&](int classes) {
    std::string table = "sentence\tlabel\n";
    for (int i = 0; i < 40; ++i) table += fmt::format("a b\t{}\n", i % classes);
    write_text(tiny.path() / "ids.tsv", table);
    return tiny
        .train({"--validate", "data.text.train_file=ids.tsv", "data.text.test_file=ids.tsv",
                "data.text.labels=[]"})
        .err;
  };
  CHECK(warned(20) == "");
  CHECK(warned(21) ==
        "warning: 21 classes in 40 rows: is this the label column (data.text.label), or are its "
        "numbers to be predicted (model.head=regression)?\n");
}

TEST_CASE("what is missing is met with an example", "[text]") {
  const TinyText tiny;
  succeeded(tiny.train({"run.folder=out", "train.steps=1"}));
  check_failure(tiny.vcas({"predict", "--model", "out", "--input", "none.tsv"}), 66,
                {"hint: --input names a table: in a .tsv file the line \"sentence\", then for each "
                 "text a line such as \"a fine film\"\n"});
  struct Case {
    std::vector<std::string> arguments;
    int code;
    std::string says;
  };
  for (const Case& c : std::vector<Case>{
           {{"data.text.train_file=none.tsv"},
            66,
            "none.tsv: no such file, nor with .gz, .xz or .zst\n  hint: data.text.train_file and "
            "data.text.test_file each name a table: in a .tsv file the line "
            "\"sentence<TAB>label\", then for each text a line such as \"a fine film<TAB>yes\"\n"},
           {{"data.text.first=sentense"},
            65,
            "train.tsv:1: no column \"sentense\" among \"sentence\", \"label\"; did you mean "
            "\"sentence\"?\n  hint: data.text.first, data.text.label name the columns; "
            "data.text.header=false if the file has no line of names\n"},
           {{"data.text.train_file="},
            78,
            "data.text.train_file is missing: data.type \"text\" reads files, such as train.tsv "
            "with the line \"sentence<TAB>label\" and a text and its label on each line after it"},
           {{"data.text.label="},
            78,
            "data.text.label is missing: which column has the labels? \"label\" is that of a table "
            "with the line \"sentence<TAB>label\""},
           {{"data.text.label=sentence"},
            78,
            "data.text.label is the column of a text, which would give the answer away"},
           {{"data.text.second=label"},
            78,
            "data.text.label is the column of a text, which would give the answer away"},
           {{"data.text.vocabulary="},
            78,
            "data.text.vocabulary is missing: a vocab.txt, unless model.pretrained has one; \"cut "
            "-f 1 train.tsv | vcas vocab > vocab.txt\" learns one"},
           {{"data.type=glue"},
            78,
            "data.text.task is missing: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE or WNLI; "
            "\"tools/get_data SST-2\" gets the files of SST-2"},
           {{"data.type=wordnet"}, 78, "apt-get install wordnet-base gets the files"},
           {{"data.type=mlm", "model.head=mlm", "data.text.train_file="},
            78,
            "data.text.train_file is missing: data.type \"mlm\" reads files, such as corpus.txt "
            "with a document on each line"},
           {{"data.type=mlm", "model.head=mlm", "data.text.labels=[]",
             "data.text.train_file=none.txt"},
            66,
            "apt-get install wordnet-base, then sed -n 's/.* | //p' /usr/share/wordnet/data.noun > "
            "corpus.txt makes such a text\n"}}) {
    std::vector<std::string> arguments = c.arguments;
    arguments.push_back("run.folder=bad");
    check_failure(tiny.train(arguments), c.code, {c.says});
    CHECK_FALSE(fs::exists(tiny.path() / "bad"));
  }
}
