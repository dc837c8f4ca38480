#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/files.h"
#include "core/metrics.h"
#include "tests/support/catch.h"
#include "tests/tools/tiny_text.h"

namespace fs = std::filesystem;

TEST_CASE("a text classifier trains, is evaluated, predicts and is exported", "[text]") {
  const TinyText tiny;
  const Outcome trained = succeeded(tiny.train({"run.folder=out", "train.steps=200"}));
  CHECK(contains(trained.out, "accuracy"));

  const Outcome evaluated = succeeded(tiny.vcas({"eval", "--model", "out/last", "--json"}));
  const nlohmann::json end = tiny.end_of("out");
  const nlohmann::json values = nlohmann::json::parse(evaluated.out);
  CHECK(values["eval_accuracy"] == end["eval_accuracy"]);
  CHECK(values["eval_loss"] == end["eval_loss"]);
  CHECK(values["eval_items"] == 16);
  CHECK(evaluated.err.empty());
  std::string mixed_up = TinyText::table(16);
  for (std::size_t at = 0; (at = mixed_up.find('\t', at + 1)) != std::string::npos;)
    if (const bool good = mixed_up.compare(at + 1, 4, "good") == 0;
        good || mixed_up.compare(at + 1, 3, "bad") == 0)
      mixed_up.replace(at + 1, good ? 4 : 3, good ? "bad" : "good");
  write_text(tiny.path() / "mixed_up.tsv", mixed_up);
  const Outcome warned =
      succeeded(tiny.vcas({"eval", "--model", "out/last", "data.text.test_file=mixed_up.tsv"}));
  CHECK(contains(warned.err,
                 "warning: the classes seem to be in another order than the model's: it mostly "
                 "predicts \"bad\" where \"good\" is right, \"good\" where \"bad\" is right"));
  const Outcome trained_so =
      tiny.train({"run.folder=so", "train.steps=200", "data.text.test_file=mixed_up.tsv"});
  const std::vector<std::string> notes = noted_warnings(tiny.path() / "so/metrics.jsonl");
  REQUIRE(notes.size() >= 1);
  CHECK(warned.err == "warning: " + notes.back() + "\n");
  CHECK(contains(trained_so.err, "\n" + warned.err));

  write_text(tiny.path() / "new.tsv", "sentence\na a a a c\nb b b b c\n");
  const Outcome predicted =
      succeeded(tiny.vcas({"predict", "--model", "out/last", "--input", "new.tsv"}));
  CHECK(predicted.out == "index\tprediction\n0\tgood\n1\tbad\n");
  const Outcome shares =
      tiny.vcas({"predict", "--model", "out/last", "--input", "new.tsv", "--probabilities"});
  double bad = 0, good = 0;
  REQUIRE(std::sscanf(shares.out.c_str(),
                      "index\tprediction\tbad\tgood\n0\tgood\t%lf\t%lf\n1\tbad\t", &bad,
                      &good) == 2);
  CHECK(good > 0.5);
  CHECK(std::abs(bad + good - 1) < 2e-6);
  check_failure(tiny.vcas({"predict", "--model", "out/last", "--input", "new.tsv", "new.tsv"}), 2,
                {"predict reads one table of texts, got 2"});
  check_contains(on_terminal(tiny.path(), "eval --model out/last").out,
                 {" evaluating items  ", "100%   step 16/16", "(16 items in "});
  check_contains(on_terminal(tiny.path(), "predict --model out/last --input new.tsv").out,
                 {" predicting items  ", "100%   step 2/2", "0\tgood"});

  // What is exported starts another run with the same weights, whatever the settings say of sizes.
  succeeded(tiny.vcas({"export", "--model", "out/last", "--to", "hf"}));
  const auto exported = [&](const char* name) {
    return nlohmann::json::parse(content(tiny.path() / "hf" / name));
  };
  CHECK(content(tiny.path() / "hf/vocab.txt") == content(tiny.path() / "vocab.txt"));
  CHECK(exported("tokenizer_config.json") == nlohmann::json{{"tokenizer_class", "BertTokenizer"},
                                                            {"do_lower_case", true},
                                                            {"strip_accents", true},
                                                            {"tokenize_chinese_chars", true},
                                                            {"model_max_length", 16}});
  CHECK(exported("special_tokens_map.json") == nlohmann::json{{"unk_token", "[UNK]"},
                                                              {"sep_token", "[SEP]"},
                                                              {"pad_token", "[PAD]"},
                                                              {"cls_token", "[CLS]"},
                                                              {"mask_token", "[MASK]"}});
  nlohmann::json config = exported("config.json");
  CHECK(config["pad_token_id"] == 1);
  CHECK(config["id2label"] == nlohmann::json{{"0", "bad"}, {"1", "good"}});
  const Outcome again = succeeded(
      tiny.train({"run.folder=again", "model.pretrained=hf",
                  "data.text.vocabulary=", "train.steps=1", "schedule.learning_rate=1e-30"}));
  CHECK(contains(again.err, "loaded"));
  const nlohmann::json same = tiny.end_of("again");
  CHECK(same["eval_loss"] == end["eval_loss"]);
  succeeded(
      tiny.train({"--validate", "model.pretrained=hf/model.safetensors", "data.text.vocabulary="}));
  check_failure(tiny.train({"model.pretrained=hf", "data.text.vocabulary=", "model.width=8",
                            "data.text.lower_case=false"}),
                78,
                {"--set model.width: model.width is 8, but hf/config.json says 16\n",
                 "--set data.text.lower_case: data.text.lower_case is false, but hf says true\n"});
  const Outcome cased_file =
      tiny.train({"data.text.vocabulary=hf/tokenizer.json", "data.text.lower_case=false"});
  CHECK(cased_file.code == 78);
  check_failure(tiny.vcas({"export", "--model", "out/last", "--to", "/dev/null"}), 73,
                {"/dev/null: exists and is not an empty folder"});
  CHECK(
      contains(cased_file.err, "data.text.lower_case is false, but hf/tokenizer.json says true\n"));
  check_failure(tiny.vcas({"export", "--model", "out/last", "--to", "hf"}), 73,
                {"hf: exists and is not an empty folder"});

  // A classifier whose classes have no names is matched with names in a given order alone.
  config.erase("id2label");
  write_text(tiny.path() / "hf/config.json", config.dump());
  const auto nameless = [&](const std::string& labels, const std::string& folder) {
    return tiny.train({"run.folder=" + folder, "model.pretrained=hf", "train.steps=1", labels,
                       "schedule.learning_rate=1e-30"});
  };
  check_failure(nameless("data.text.labels=[]", "unclear"), 78,
                {"the model's classes are LABEL_0, LABEL_1, the data's bad, good: "
                 "they cannot be matched by name"});
  succeeded(nameless(R"(data.text.labels=["bad","good"])", "given"));
  CHECK(tiny.end_of("given")["eval_loss"] == end["eval_loss"]);
  CHECK(tiny.vcas({"predict", "--model", "given/last", "--input", "new.tsv"}).out ==
        "index\tprediction\n0\tgood\n1\tbad\n");
}

TEST_CASE("a checkpoint needs nothing of what it was made from", "[text]") {
  const TinyText tiny;
  succeeded(tiny.train({"run.folder=first", "train.steps=1"}));
  succeeded(tiny.vcas({"export", "--model", "first/last", "--to", "hf"}));
  // The tokenizer has its own ideas, the classes an order of their own.
  nlohmann::json tokenizer = tiny.json("hf/tokenizer.json");
  tokenizer["model"]["max_input_chars_per_word"] = 2;
  write_text(tiny.path() / "hf/tokenizer.json", tokenizer.dump());
  nlohmann::json config = tiny.json("hf/config.json");
  config["id2label"] = {{"0", "good"}, {"1", "bad"}};
  write_text(tiny.path() / "hf/config.json", config.dump());
  succeeded(tiny.train(
      {"run.folder=out", "model.pretrained=hf", "data.text.vocabulary=", "data.text.labels=[]"}));

  write_text(tiny.path() / "new.tsv", "sentence\na a a a c\nbbb aa aaa\nb b b b c\n");
  const auto predict = [&] {
    return tiny.vcas({"predict", "--model", "out/last", "--input", "new.tsv"});
  };
  const auto evaluate = [&] { return tiny.vcas({"eval", "--model", "out/best", "--json"}); };
  const auto export_to = [&](const std::string& folder) {
    succeeded(tiny.vcas({"export", "--model", "out", "--to", folder}));
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(tiny.path() / folder))
      files[entry.path().filename().string()] = content(entry.path());
    return files;
  };
  const auto values = [](const Outcome& outcome) {
    nlohmann::json json = nlohmann::json::parse(outcome.out);
    json.erase("eval_samples_per_second");
    return json;
  };
  const Outcome predicted = predict(), evaluated = evaluate();
  INFO(predicted.err << evaluated.err);
  REQUIRE(predicted.code == 0);
  REQUIRE(evaluated.code == 0);
  const auto exported = export_to("before");
  CHECK(exported.at("tokenizer.json") == content(tiny.path() / "out/last/tokenizer.json"));
  CHECK(nlohmann::json::parse(exported.at("config.json"))["id2label"] == config["id2label"]);

  for (const char* gone : {"hf", "first", "cache", "vocab.txt", "train.tsv", "tiny.json"})
    fs::remove_all(tiny.path() / gone);
  CHECK(predict().out == predicted.out);
  CHECK(export_to("after") == exported);
  CHECK(values(evaluate()) == values(evaluated));
  fs::remove(tiny.path() / "test.tsv");
  CHECK(predict().out == predicted.out);
  CHECK(evaluate().code == 66);

  check_failure(tiny.vcas({"predict", "--model", "out", "--input", "new.tsv", "model.width=8"}), 78,
                {"model.width is 16 in the checkpoint, and cannot become 8"});
  fs::remove(tiny.path() / "out/last/manifest.json");
  CHECK(predict().code == 65);
}

TEST_CASE("exact training saves nothing, however long its texts are", "[text]") {
  const TinyText tiny;
  succeeded(tiny.train({"run.folder=out", "method.type=exact"}));
  for (const nlohmann::json& line : vcas::read_metrics(tiny.path() / "out/metrics.jsonl"))
    if (line["event"] == "train" || line["event"] == "end") {
      CHECK(line["flops_saved"] == 0.0);
      CHECK(line["backward_flops_saved"] == 0.0);
    }
}

TEST_CASE("the classes of test data are those of the training data", "[text]") {
  const TinyText tiny;
  write_text(tiny.path() / "three.tsv", TinyText::table(64) + "c c\tfine\nc d\tfine\n");
  const auto eval_loss = [&](const std::string& labels, const std::string& folder) {
    succeeded(tiny.train(
        {"data.text.train_file=three.tsv", labels, "run.folder=" + folder, "train.steps=4"}));
    return tiny.end_of(folder)["eval_loss"];
  };
  CHECK(eval_loss("data.text.labels=[]", "found") ==
        eval_loss(R"(data.text.labels=["bad","fine","good"])", "given"));
  check_failure(tiny.train({"data.text.test_file=three.tsv", "data.text.labels=[]"}), 65,
                {"three.tsv:66: label \"fine\" is not one of bad, good"});
}

TEST_CASE("data.text.labels gives the order of a GLUE task's classes", "[text]") {
  const TinyText tiny;
  fs::create_directories(tiny.path() / "mrpc");
  const std::string columns = "#1 ID\t#2 ID\t#1 String\t#2 String\n";
  std::string train = "Quality\t" + columns, test = "index\t" + columns;
  std::vector<bool> equivalent;
  for (int i = 0; i < 24; ++i) {
    equivalent.push_back(i % 3 == 0);
    const std::string texts =
        fmt::format("1\t2\ta {}\tb {}\n", i % 3 > 0 ? "c" : "d", i % 2 > 0 ? "a a b" : "b d");
    train += (equivalent.back() ? "1\t" : "0\t") + texts;
    test += fmt::format("{}\t{}", i, texts);
  }
  write_text(tiny.path() / "mrpc/train.tsv", train);
  train[train.find('\n') + 1] = '0';  // so that the two classes have different scores
  equivalent[0] = false;
  write_text(tiny.path() / "mrpc/dev.tsv", train);
  write_text(tiny.path() / "mrpc/test.tsv", test);
  const auto run = [&](const std::string& labels) {
    return tiny.train({"data.type=glue", "data.text.task=MRPC", "data.folder=mrpc",
                       "run.folder=out", "train.steps=60", "schedule.learning_rate=0.01", labels});
  };
  check_failure(run(R"(data.text.labels=["equivalent","other"])"), 78,
                {"data.text.labels has equivalent, other, but the classes of MRPC are "
                 "not_equivalent, equivalent"});
  succeeded(run(R"(data.text.labels=["equivalent","not_equivalent"])"));

  // F1 is that of "equivalent", the model's class 0, by the words that it predicts.
  const Outcome predicted =
      tiny.vcas({"predict", "--model", "out/last", "--input", "mrpc/test.tsv"});
  fs::create_directories(tiny.path() / "submission");
  succeeded(tiny.vcas({"predict", "--model", "out/last", "--submission", "submission"}));
  std::string want = "index\tprediction\n", numbers = want;
  std::istringstream lines(predicted.out.substr(want.size()));
  double both = 0, either = 0;
  int index = 0;
  for (const bool right : equivalent) {
    int number = 0;
    std::string word;
    lines >> number >> word;
    CHECK((word == "equivalent" || word == "not_equivalent"));
    const bool said = word == "equivalent";
    both += said && right;
    either += said + right;
    numbers += fmt::format("{}\t{}\n", index++, said ? 1 : 0);
  }
  CHECK(content(tiny.path() / "submission/MRPC.tsv") == numbers);
  const nlohmann::json end = tiny.end_of("out");
  CHECK(both > 0);
  CHECK_THAT(end["eval_f1"].get<double>(), WithinAbs(2 * both / either, 1e-12));
}

TEST_CASE("predict needs both columns of a model of pairs", "[text]") {
  const TinyText tiny;
  fs::create_directories(tiny.path() / "wordnet");
  std::string nouns = "00000001 03 n 01 a 0 000 | a\n00000002 03 n 01 b 0 000 | b\n";
  for (int i = 3; i < 103; ++i)
    nouns += fmt::format("{:08} 03 n 01 c 0 001 @ {:08} n 0000 | c {}\n", i, 1 + i % 2,
                         i % 2 > 0 ? "b" : "a");
  write_text(tiny.path() / "wordnet/data.noun", nouns);
  write_text(tiny.path() / "wordnet/data.verb", "00000100 38 v 01 move 0 000 00 | d\n");
  write_text(tiny.path() / "wordnet/data.adj", "00000100 00 s 01 big 0 000 | d\n");
  write_text(tiny.path() / "wordnet/data.adv", "00000100 02 r 01 well 0 000 | d\n");
  succeeded(tiny.train({"data.type=wordnet", "data.text.task=is_a", "data.folder=wordnet",
                        "data.text.labels=[]", "run.folder=out", "train.steps=1"}));
  write_text(tiny.path() / "pairs.tsv", "child\tparent\nc b\tb\nc a\ta\n");
  check_failure(tiny.vcas({"predict", "--model", "out/last", "--input", "pairs.tsv"}), 78,
                {"the model reads pairs of texts, and data.text.second names none",
                 "data.text.second=COLUMN"});
  const Outcome pairs =
      succeeded(tiny.vcas({"predict", "--model", "out/last", "--input", "pairs.tsv",
                           "data.text.first=child", "data.text.second=parent"}));
  CHECK(std::count(pairs.out.begin(), pairs.out.end(), '\n') == 3);
}

TEST_CASE("a prediction for each row, however many and long, and none where one is bad", "[text]") {
  const TinyText tiny;
  write_text(tiny.path() / "train.tsv", content(tiny.path() / "train.tsv") + "one column\n");
  const std::vector<std::string> settings = {"run.folder=out", "train.steps=3", "data.eval_limit=1",
                                             "data.text.max_length=16", "data.skip_bad_rows=true"};
  succeeded(tiny.train(settings));
  const std::string warning = "bad rows left out of the training data: 1";
  CHECK(noted_warnings(tiny.path() / "out/metrics.jsonl") == std::vector{warning});
  const Outcome valid = tiny.train({"--validate", "run.folder=other", "data.skip_bad_rows=true"});
  CHECK(valid.err == "warning: " + warning + "\n");
  CHECK(contains(valid.out, "64 train, 16 test, 2 classes: "));

  std::string rows = "sentence\n";
  for (int i = 0; i < 9; ++i) rows += "a b a b a b a b a b a b a b a b a b\n";
  write_text(tiny.path() / "new.tsv", rows);
  const Outcome predicted =
      succeeded(tiny.vcas({"predict", "--model", "out", "--input", "new.tsv"}));
  CHECK(std::count(predicted.out.begin(), predicted.out.end(), '\n') == 10);
  CHECK(predicted.err == "warning: 9 of 9 new texts are cut to 16 tokens (data.text.max_length)\n");

  write_text(tiny.path() / "new.tsv", "sentence\na\n\nb\n\n");
  const Outcome blank = tiny.vcas({"predict", "--model", "out", "--input", "new.tsv"});
  CHECK(std::count(blank.out.begin(), blank.out.end(), '\n') == 5);

  write_text(tiny.path() / "new.tsv", "sentence\na\nb\tc\na\n");
  check_failure(tiny.vcas({"predict", "--model", "out", "--input", "new.tsv"}), 65,
                {"new.tsv:3: 2 columns, expected 1"});
}

TEST_CASE("a GLUE submission makes its folder and has a line for each row", "[text]") {
  const TinyText tiny;
  const fs::path glue = tiny.path() / "glue/SST-2";
  fs::create_directories(glue);
  const std::string labelled = "sentence\tlabel\na a\t1\nb b\t0\na\t1\nb\t0\n";
  write_text(glue / "train.tsv", labelled);
  write_text(glue / "dev.tsv", labelled);
  write_text(glue / "test.tsv", "index\tsentence\n0\ta\n1\tb\n2\tc\n");
  succeeded(tiny.train({"data.type=glue", "data.text.task=SST-2", "data.text.labels=[]",
                        "run.folder=out", "train.steps=1", "train.batch_size=2",
                        "data.eval_limit=1", "data.skip_bad_rows=true"}));
  const std::vector<std::string> predict = {"predict", "--model", "out", "--submission",
                                            "deep/submission"};
  succeeded(tiny.vcas(predict));
  const std::string lines = content(tiny.path() / "deep/submission/SST-2.tsv");
  CHECK(std::count(lines.begin(), lines.end(), '\n') == 4);
  write_text(glue / "test.tsv", "index\tsentence\n0\ta\n1\n2\tc\n");
  check_failure(tiny.vcas(predict), 65, {"glue/SST-2/test.tsv:3: 1 column, expected 2"});
}

TEST_CASE("MNLI is evaluated and submitted on both of its sets", "[text]") {
  const TinyText tiny;
  const fs::path glue = tiny.path() / "glue/MNLI";
  fs::create_directories(glue);
  const std::vector<std::string> classes = {"entailment", "neutral", "contradiction"};
  const auto table = [&](int rows, bool labelled, int turn) {
    std::string text = labelled ? "sentence1\tsentence2\tgold_label\n" : "sentence1\tsentence2\n";
    for (int i = 0; i < rows; ++i) {
      const std::string words[] = {"a a", "b b", "d d"};
      text += words[i % 3] + "\tc";
      if (labelled) text += "\t" + classes[static_cast<std::size_t>(i + turn) % 3];
      text += "\n";
    }
    return text;
  };
  write_text(glue / "train.tsv", table(48, true, 0));
  write_text(glue / "dev_matched.tsv", table(9, true, 0));
  const std::vector<std::string> settings = {"data.type=glue",  "data.text.task=MNLI",
                                             "train.steps=200", "schedule.learning_rate=0.01",
                                             "model.dropout=0", "model.attention_dropout=0"};
  // From some seeds so small a model does not learn the third class.
  const auto train = [&](const std::string& folder, const std::string& seed,
                         const std::string& labels = "[]") {
    std::vector<std::string> arguments = settings;
    arguments.insert(arguments.end(),
                     {"run.folder=" + folder, "seed=" + seed, "data.text.labels=" + labels});
    succeeded(tiny.train(arguments));
    return tiny.end_of(folder);
  };
  const nlohmann::json alone = train("alone", "0");
  CHECK(alone["eval_accuracy"] == 1.0);
  CHECK_FALSE(alone.contains("eval_accuracy_mm"));

  // One row in three of the other set has the class that the texts say.
  std::string other = table(6, true, 0) + table(12, true, 1).substr(table(0, true, 0).size());
  write_text(glue / "dev_mismatched.tsv", other);
  const nlohmann::json both = train("both", "0");
  CHECK(both["eval_accuracy"] == 1.0);
  CHECK_THAT(both["eval_accuracy_mm"].get<double>(), WithinAbs(1.0 / 3, 1e-12));
  CHECK(both["eval_loss"] == alone["eval_loss"]);
  CHECK(both["eval_loss_mm"] > 1.0);
  CHECK(both["best_accuracy"] == 1.0);
  const nlohmann::json turned = train("turned", "2", R"(["neutral","contradiction","entailment"])");
  CHECK(turned["eval_accuracy"] == 1.0);
  CHECK(turned["eval_accuracy_mm"] == both["eval_accuracy_mm"]);
  check_contains(content(tiny.path() / "both/log.txt"),
                 {"test 9 · mismatched 18 · 3 classes", "accuracy 1.0000  loss_mm "});
  const nlohmann::json values = tiny.eval("both/last");
  CHECK(values["eval_accuracy_mm"] == both["eval_accuracy_mm"]);
  CHECK(values["eval_loss_mm"] == both["eval_loss_mm"]);
  CHECK(values["eval_items"] == 27);
  const nlohmann::json chosen = tiny.eval("both/last", {"data.text.eval_split=dev_mismatched"});
  CHECK(chosen["eval_accuracy"] == both["eval_accuracy_mm"]);
  CHECK_FALSE(chosen.contains("eval_accuracy_mm"));
  const auto submit = [&](const std::string& folder, const std::string& split) {
    succeeded(tiny.vcas({"predict", "--model", "alone", "--submission", folder, "--split", split}));
    std::map<std::string, std::ptrdiff_t> lines;
    for (const auto& entry : fs::directory_iterator(tiny.path() / folder)) {
      const std::string text = content(entry.path());
      lines[entry.path().filename().string()] = std::count(text.begin(), text.end(), '\n');
    }
    return lines;
  };
  using Lines = std::map<std::string, std::ptrdiff_t>;
  write_text(glue / "test_matched.tsv", table(5, false, 0));
  CHECK(submit("one", "test") == Lines{{"MNLI-m.tsv", 6}});
  write_text(glue / "test_mismatched.tsv", table(4, false, 0));
  CHECK(submit("other", "dev_mismatched").begin()->first == "MNLI-mm.tsv");
  CHECK(submit("two", "test") == Lines{{"MNLI-m.tsv", 6}, {"MNLI-mm.tsv", 5}});
  check_failure(tiny.vcas({"predict", "--model", "alone", "--glue-submission", "alone/last"}), 73,
                {"\n  hint: choose another place for --submission\n"});
  write_text(glue / "diagnostic.tsv", table(3, false, 0));
  CHECK(submit("three", "test") == Lines{{"AX.tsv", 4}, {"MNLI-m.tsv", 6}, {"MNLI-mm.tsv", 5}});
  CHECK(submit("other", "test_mismatched") == Lines{{"MNLI-mm.tsv", 5}});
  CHECK(content(tiny.path() / "three/AX.tsv") ==
        "index\tprediction\n0\tentailment\n1\tneutral\n2\tcontradiction\n");
}

TEST_CASE("tables without a header line, and masked words from columns", "[text]") {
  const TinyText tiny;
  const std::string table = content(tiny.path() / "train.tsv");
  write_text(tiny.path() / "headless.tsv", table.substr(table.find('\n') + 1));
  const Outcome headless =
      tiny.train({"--validate", "data.text.header=false", "data.text.first=0", "data.text.label=1",
                  "data.text.train_file=headless.tsv", "data.text.test_file=headless.tsv"});
  INFO(headless.err);
  CHECK(contains(headless.out, "64 train, 64 test, 2 classes: "));

  write_text(tiny.path() / "corpus.jsonl", "{\"text\": \"a b c d a b c d a b c d\"}\n");
  write_text(tiny.path() / "corpus.tsv", "id\ttext\n1\ta b c d a b c d\n");
  succeeded(tiny.train({"run.folder=masked", "data.type=mlm", "model.head=mlm", "train.steps=1",
                        "train.batch_size=1", "data.text.train_file=corpus.jsonl",
                        "data.text.test_file=corpus.tsv"}));
}

// The first operation of a step or probe whose results differ ends the run.
TEST_CASE("device kernels train a BERT as the CPU does", "[text][device]") {
  const TinyText tiny;
  for (const std::vector<std::string>& head :
       {std::vector<std::string>{"data.type=text"},
        {"data.type=mlm", "model.head=mlm", "data.text.train_file=corpus.txt",
         "data.text.test_file=corpus.txt", "data.text.labels=[]", "train.batch_size=3"}}) {
    for (const char* selection : {"systematic", "bernoulli"}) {
      succeeded(tiny.train(with(
          {"device=check:emu,cpu", "train.steps=12", "run.folder=checked", "run.overwrite=true",
           "method.update_every=4", "method.selection=" + std::string(selection)},
          head)));
    }
  }
}

TEST_CASE("a regression has no accuracy, and a comparison gives each head its data", "[text]") {
  const TinyText tiny;
  for (const char* name : {"train.tsv", "test.tsv"}) {
    std::string rows = "sentence\tlabel\n";
    for (int i = 0; i < 16; ++i) rows += i % 2 ? "a a\t1\n" : "b b\t0\n";
    write_text(tiny.path() / name, rows);
  }
  std::string numbers = content(tiny.path() / "tiny.json");
  numbers.replace(numbers.find("\"type\": \"bert\""), 14,
                  "\"type\": \"bert\", \"head\": \"regression\"");
  write_text(tiny.path() / "numbers.json", numbers);
  const Outcome both =
      succeeded(tiny.vcas({"compare", "tiny.json", "numbers.json", "--folder", "both", "--json",
                           "train.steps=2", "data.text.labels=[]"}));
  const nlohmann::json runs = nlohmann::json::parse(both.out)["runs"];
  CHECK(runs[0].contains("eval_accuracy"));
  CHECK(runs[1].contains("eval_pearson"));
  for (const nlohmann::json& line : vcas::read_metrics(tiny.path() / "both/numbers/metrics.jsonl"))
    CHECK_FALSE(line.contains("accuracy"));
  succeeded(tiny.train({"model.head=regression", "run.folder=out", "train.steps=2"}));
  check_failure(
      tiny.vcas({"predict", "--model", "out/last", "--input", "train.tsv", "--probabilities"}), 2,
      {"--probabilities is for classes, and this model predicts a number"});
  for (const nlohmann::json& line : vcas::read_metrics(tiny.path() / "out/metrics.jsonl"))
    CHECK_FALSE(line.contains("accuracy"));
  // All digits: targets may be small.
  std::string predicted = tiny.vcas({"predict", "--model", "out/last", "--input", "train.tsv"}).out;
  predicted = predicted.substr(predicted.find("\n0\t") + 3);
  CHECK(predicted.find('\n') > std::string("-0.1234").size());
}

TEST_CASE("eval tells of test data that have changed since the checkpoint", "[text]") {
  const TinyText tiny;
  succeeded(tiny.train({"run.folder=out", "train.steps=1"}));
  const auto eval = [&] { return tiny.vcas({"eval", "--model", "out"}); };
  CHECK(eval().err.empty());
  write_text(tiny.path() / "test.tsv", TinyText::table(8));
  const Outcome changed = succeeded(eval());
  CHECK(changed.err == "warning: test.tsv has changed since out/checkpoint-1 was saved\n");
}

TEST_CASE("random words need no files: a run, its evaluation, a bench", "[text]") {
  const TinyText tiny;
  const auto on_words = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(),
                     {"--config", "tiny.json", "data.type=synthetic_text", "data.text.labels=[]",
                      "data.synthetic.tokens=12", "data.synthetic.vocabulary=50",
                      "data.synthetic.items=64", "data.synthetic.eval_items=16"});
    return tiny.vcas(arguments);
  };
  succeeded(on_words({"vcas-train", "run.folder=out", "train.steps=5"}));
  CHECK(contains(content(tiny.path() / "out/last/vocab.txt"), "[MASK]\nw0\nw1\n"));
  CHECK(tiny.eval("out/last")["eval_items"] == 16);
  const nlohmann::json timed = nlohmann::json::parse(
      succeeded(on_words({"bench", "--steps", "1", "--pad-to", "12", "--json"})).out);
  CHECK(timed["time_ratio"] > 0);
  CHECK(timed["padded_to"] == 12);
  CHECK(timed["padded_over_packed"] ==
        timed["padded_seconds"].get<double>() / timed["exact"]["median_seconds"].get<double>());
}
