#include <nlohmann/json.hpp>

#include "core/metrics.h"
#include "tests/support/catch.h"
#include "tests/tools/program.h"

namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kCache = {"VCAS_CACHE_DIR=cache"};

// tiny.json: a small BERT on texts that are "good" where they hold more a than b.
class TinyText : public TemporaryFolder {
 public:
  TinyText() {
    write_text(path() / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\n##a\n##b\n");
    write_text(path() / "train.tsv", table(64));
    write_text(path() / "test.tsv", table(16));
    write_text(path() / "corpus.txt", "a b c d a b c d a b\nc d a b c d a b c d a b c d\n");
    write_text(path() / "tiny.json", R"({
  "threads": 1,
  "data": {"type": "text",
           "text": {"train_file": "train.tsv", "test_file": "test.tsv", "vocabulary": "vocab.txt",
                    "labels": ["bad", "good"], "max_length": 12}},
  "model": {"type": "bert", "width": 16, "depth": 2, "heads": 2, "max_positions": 16,
            "dropout": 0.1},
  "train": {"steps": 40, "batch_size": 8, "eval_every": 20},
  "schedule": {"learning_rate": 0.003},
  "vcas": {"update_every": 5, "s_step": 0.1, "weight_multiplier": 0.7}
})");
  }

  Outcome vcas(const std::vector<std::string>& arguments) const {
    return run(path(), arguments, kCache);
  }
  Outcome train(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"vcas-train", "--config", "tiny.json"});
    return vcas(arguments);
  }

 private:
  static std::string table(int rows) {
    std::string text = "sentence\tlabel\n";
    for (int i = 0; i < rows; ++i) {
      const int a = i * 7 % 5, b = i * 11 % 6;
      for (int k = 0; k < a; ++k) text += "a ";
      for (int k = 0; k < b; ++k) text += "b ";
      text += a > b ? "c\tgood\n" : "c\tbad\n";
    }
    return text;
  }
};

}  // namespace

TEST_CASE("a text classifier trains, is evaluated, predicts and is exported", "[text]") {
  const TinyText tiny;
  const Outcome trained = tiny.train({"run.folder=out", "train.steps=200"});
  INFO(trained.err);
  REQUIRE(trained.code == 0);
  CHECK(contains(trained.out, "accuracy"));

  const Outcome evaluated = tiny.vcas({"eval", "--model", "out/last", "--json"});
  REQUIRE(evaluated.code == 0);
  const nlohmann::json end = vcas::read_metrics(tiny.path() / "out/metrics.jsonl").back();
  const nlohmann::json values = nlohmann::json::parse(evaluated.out);
  CHECK(values["eval_accuracy"] == end["eval_accuracy"]);
  CHECK(values["eval_loss"] == end["eval_loss"]);
  CHECK(values["eval_items"] == 16);

  write_text(tiny.path() / "new.tsv", "sentence\na a a a c\nb b b b c\n");
  const Outcome predicted = tiny.vcas({"predict", "--model", "out/last", "--input", "new.tsv"});
  INFO(predicted.err);
  CHECK(predicted.code == 0);
  CHECK(predicted.out == "index\tprediction\n0\tgood\n1\tbad\n");

  // What is exported starts another run with the same weights, whatever the settings say of sizes.
  REQUIRE(tiny.vcas({"export", "--model", "out/last", "--to", "hf"}).code == 0);
  for (const char* name :
       {"config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json"})
    CHECK(fs::exists(tiny.path() / "hf" / name));
  const Outcome again =
      tiny.train({"run.folder=again", "model.pretrained=hf", "model.width=8",
                  "data.text.vocabulary=", "train.steps=1", "schedule.learning_rate=1e-30"});
  INFO(again.err);
  REQUIRE(again.code == 0);
  CHECK(contains(again.err, "loaded"));
  const nlohmann::json same = vcas::read_metrics(tiny.path() / "again/metrics.jsonl").back();
  CHECK(same["eval_loss"] == end["eval_loss"]);
  const Outcome twice = tiny.vcas({"export", "--model", "out/last", "--to", "hf"});
  CHECK(twice.code == 73);
  CHECK(contains(twice.err, "hf: exists and is not empty"));
}

TEST_CASE("a text run that is resumed has the bits of the whole run", "[text]") {
  const TinyText tiny;
  for (const std::string more : {"data.type=text", "data.type=mlm"}) {
    std::vector<std::string> settings = {more};
    if (more == "data.type=mlm") {
      settings.push_back("model.head=mlm");
      settings.push_back("data.text.train_file=corpus.txt");
      settings.push_back("data.text.test_file=corpus.txt");
      settings.push_back("train.batch_size=2");
    }
    const auto with = [&](std::vector<std::string> arguments) {
      arguments.insert(arguments.end(), settings.begin(), settings.end());
      return arguments;
    };
    const Outcome whole = tiny.train(with({"run.folder=whole", "--overwrite"}));
    INFO(whole.err);
    REQUIRE(whole.code == 0);
    REQUIRE(tiny.train(with({"run.folder=parts", "--overwrite"})).code == 0);
    fs::remove_all(tiny.path() / "parts/checkpoint-40");
    fs::remove(tiny.path() / "parts/last");
    fs::remove(tiny.path() / "parts/best");
    const Outcome resumed = tiny.train(with({"run.folder=parts", "--resume"}));
    INFO(resumed.err);
    REQUIRE(resumed.code == 0);
    CHECK(contains(resumed.err, "resuming parts/checkpoint-20"));
    CHECK(content(tiny.path() / "whole/last/model.safetensors") ==
          content(tiny.path() / "parts/last/model.safetensors"));
  }
}

TEST_CASE("bad text runs are refused before training", "[text]") {
  const TinyText tiny;
  struct Case {
    std::vector<std::string> arguments;
    int code;
    std::vector<std::string> says;
  };
  for (const Case& c :
       std::vector<Case>{{{"data.text.vocabulary=none.txt"}, 66, {"none.txt"}},
                         {{"data.text.train_file=none.tsv"}, 66, {"none.tsv"}},
                         {{"data.text.train_file="}, 78, {"data.text.train_file", "is missing"}},
                         {{"data.text.first=sentense"}, 65, {"train.tsv", "sentense", "sentence"}},
                         {{R"(data.text.labels=["bad","fine"])"},
                          65,
                          {"train.tsv:6", "good", "data.text.labels"}},
                         {{"model.type=vit"}, 78, {"does not fit data.type \"text\""}},
                         {{"model.head=mlm"}, 78, {"model.head"}},
                         {{"data.text.vocabulary="}, 78, {"data.text.vocabulary", "is missing"}},
                         {{"data.flip=true"}, 78, {"data.flip", "needs images"}},
                         {{"data.type=glue"}, 78, {"data.text.task", "is missing"}},
                         {{"data.type=glue", "data.text.task=MLNI"}, 78, {"MLNI", "MNLI"}},
                         {{"data.type=glue", "data.text.task=MNLI"}, 66, {"tools/get_data MNLI"}},
                         {{"data.type=wordnet", "data.text.task=isa"}, 78, {"is_a"}}}) {
    std::vector<std::string> arguments = c.arguments;
    arguments.push_back("run.folder=bad");
    const Outcome outcome = tiny.train(arguments);
    INFO(c.arguments.front() << ": " << outcome.err);
    CHECK(outcome.code == c.code);
    for (const std::string& part : c.says) CHECK(contains(outcome.err, part));
    CHECK_FALSE(fs::exists(tiny.path() / "bad"));
  }
}
