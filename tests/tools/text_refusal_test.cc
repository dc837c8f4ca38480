// What is wrong with a run on texts is said before it trains.
#include <sys/stat.h>

#include "tests/support/catch.h"
#include "tests/support/shared_data.h"
#include "tests/tools/tiny_text.h"

namespace fs = std::filesystem;

TEST_CASE("texts that the vocabulary does not know are worth a warning", "[text]") {
  const TinyText tiny;
  std::string capitals = content(tiny.path() / "train.tsv");
  std::ranges::replace(capitals, 'a', 'A');
  capitals[capitals.find('A')] = 'a';  // "label"
  write_text(tiny.path() / "capitals.tsv", capitals);
  const auto warned = [&](const std::string& setting) {
    const Outcome outcome = succeeded(tiny.train({"run.folder=out", "--overwrite", "train.steps=1",
                                                  "data.text.train_file=capitals.tsv",
                                                  "data.text.test_file=capitals.tsv", setting}));
    return contains(outcome.err, "% of the tokens of the training texts are [UNK]; are vocab.txt");
  };
  CHECK_FALSE(warned("data.text.lower_case=true"));
  CHECK(warned("data.text.lower_case=false"));
}

TEST_CASE("plain text that the vocabulary does not know is worth a warning too", "[text]") {
  const TinyText tiny;
  write_text(tiny.path() / "capitals.txt", "A B C D a b c d A B C D\na b A B\n");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"data.type=mlm", "model.head=mlm"},
        {"data.type=lm", "model.type=gpt"}}) {
    const auto warnings = [&](const std::vector<std::string>& more) {
      std::vector<std::string> settings = words;
      settings.insert(settings.end(), {"data.text.train_file=capitals.txt", "train.batch_size=1",
                                       "data.text.test_file=capitals.txt", "train.steps=1"});
      settings.insert(settings.end(), more.begin(), more.end());
      return succeeded(tiny.train(settings)).err;
    };
    CHECK(warnings({"--validate"}).empty());
    CHECK(contains(warnings({"--validate", "data.text.lower_case=false"}),
                   " % of the tokens of the training texts are [UNK]; are vocab.txt and "
                   "data.text.lower_case right?\n"));
    warnings({"run.folder=words", "--overwrite", "model.vocabulary=20"});
    CHECK(contains(warnings({"--validate", "model.pretrained=words"}),
                   "warning: vocab.txt has 11 tokens, and the weights are for 20\n"));
  }
}

TEST_CASE("the vocabulary of a real uncased BERT is one of small letters", "[text]") {
  const fs::path vocabulary = vcas::shared_data("bert_vocab/vocab.txt");
  if (vocabulary.empty()) return;
  const TinyText tiny;
  const Outcome outcome = tiny.train({"--validate", "data.text.vocabulary=" + vocabulary.string()});
  CHECK(outcome.err.empty());
  CHECK(outcome.code == 0);
}

TEST_CASE("what a model cannot be exported for is said before its training", "[text]") {
  const TinyText tiny;
  CHECK(tiny.train({"--validate"}).err.empty());
  write_text(tiny.path() / "no_pad.txt", "[UNK]\n[CLS]\n[SEP]\na\nb\nc\n");
  const std::string warning = "warning: vcas export will not write the trained model: ";
  const Outcome no_pad = succeeded(tiny.train({"--validate", "data.text.vocabulary=no_pad.txt"}));
  CHECK(no_pad.err == warning + "no_pad.txt has no token [PAD]\n");
  const Outcome mean =
      succeeded(tiny.train({"run.folder=out", "model.pooling=mean", "train.steps=1"}));
  const std::string why = "transformers has no class for a bert with model.pooling \"mean\"\n";
  CHECK(contains(mean.err, warning + why));
  check_failure(tiny.vcas({"export", "--model", "out/last", "--to", "hf"}), 78,
                {why + "  hint: docs/models.md says which models can be exported\n"});
  CHECK_FALSE(fs::exists(tiny.path() / "hf"));
}

TEST_CASE("bad text runs are refused before training", "[text]") {
  const TinyText tiny;
  REQUIRE(::mkfifo((tiny.path() / "pipe.tsv").c_str(), 0600) == 0);
  fs::create_symlink("loop.tsv", tiny.path() / "loop.tsv");
  write_text(tiny.path() / "spaces.tsv", "sentence\tlabel\na\tgood\nb\tbad \n");
  write_text(tiny.path() / "signs.tsv", "sentence\tlabel\na\t+\nb\t-\n");
  write_text(tiny.path() / "gaps.tsv", "sentence\tlabel\na\tgood\nb\tbad\nc\t\n");
  write_text(tiny.path() / "cyrillic.txt", "[UNK]\n[PAD]\n[CLS]\n[SEP]\n\u0416\n##\u0411\n");
  struct Case {
    std::vector<std::string> arguments;
    int code;
    std::vector<std::string> says;
  };
  for (const Case& c : std::vector<Case>{
           {{"data.text.vocabulary=none.txt"},
            66,
            {"error: none.txt: no such file\n"
             "  hint: vcas vocab learns a vocabulary from text; the folder of a Hugging Face model "
             "has its own\n"}},
           {{"model.pretrained=bert-base-uncased", "data.text.vocabulary="},
            66,
            {"error: bert-base-uncased: no such file or folder\n  hint: model.pretrained is a "
             "run, or a folder with config.json, model.safetensors and, of texts, vocab.txt, "}},
           {{"model.max_positions=8"},
            78,
            {"data.text.max_length is 12, and the model has 8 positions\n"
             "  hint: data.text.max_length=8 cuts longer items off\n"}},
           {{"model.max_positions=7"},
            78,
            {"data.text.max_length is 12, and the model has 7 positions\n"
             "  hint: model.max_positions must be at least 8, the least data.text.max_length\n"}},
           {{"data.text.header=false"},
            78,
            {"without a header line columns are numbers from 0, got \"sentence\"",
             "hint: number the columns, such as data.text.first=0, data.text.label=1\n"}},
           {{"data.text.train_file=signs.tsv", "data.text.labels=[]"},
            65,
            {"signs.tsv:3: the label \"-\" stands for none\n  hint: data.skip_bad_rows=true leaves "
             "such rows out; if it is a class, list all classes in data.text.labels\n"}},
           {{"data.text.label="}, 78, {"data.text.label is missing"}},
           {{"data.type=glue", "data.text.task=STS-B"},
            78,
            {"model.head must be \"regression\": STS-B has numbers to predict"}},
           {{"data.type=glue", "data.text.task=sst2", "model.head=regression"},
            78,
            {"model.head must not be \"regression\": sst2 has classes"}},
           {{"data.type=wordnet", "data.text.task=is_a", "model.head=regression"},
            78,
            {"model.head must not be \"regression\": is_a has classes"}},
           {{"data.text.train_file=none.tsv"}, 66, {"none.tsv"}},
           {{"data.text.train_file="}, 78, {"data.text.train_file", "is missing"}},
           {{"data.text.first=sentense"}, 65, {"train.tsv", "sentense", "sentence"}},
           {{R"(data.text.labels=["bad","fine"])"},
            65,
            {"train.tsv:6", "good", "data.text.labels"}},
           {{"model.type=vit"}, 78, {"does not fit data.type \"text\""}},
           {{"train.balance_lengths=true", "train.batch_size=8", "train.micro_batch=3"},
            78,
            {"train.balance_lengths needs equal micro-batches, and train.batch_size 8 is no "
             "multiple of train.micro_batch 3"}},
           {{"model.head=mlm"},
            78,
            {"model.head \"mlm\" does not fit data.type \"text\": the head mlm and data of masked "
             "words go together; set model.head to \"classification\"\n"}},
           {{"data.type=mlm", "data.text.labels=[]"},
            78,
            {"model.head \"classification\" does not fit data.type \"mlm\": the head mlm and data "
             "of masked words go together; set model.head to \"mlm\"\n"}},
           {{"data.text.vocabulary="}, 78, {"data.text.vocabulary", "is missing"}},
           {{"data.text.vocabulary=cased.txt"},
            78,
            {"2 of the vocabulary's 8 tokens have capitals, and texts are "
             "lower-cased",
             "data.text.lower_case=false"}},
           {{"data.text.vocabulary=cyrillic.txt"},
            78,
            {"2 of the vocabulary's 6 tokens have capitals, and texts are lower-cased"}},
           {{"data.flip=true"}, 78, {"\"flip\" in \"data\" is a setting of \"cifar10\", "}},
           {{"data.text.eval_split=train"},
            78,
            {"\"eval_split\" in \"data.text\" is a setting of \"glue\", and data.type is "
             "\"text\""}},
           {{"data.text.task=RTE"}, 78, {"is a setting of \"glue\" and \"wordnet\""}},
           {{"data.text.whole_words=true"}, 78, {"is a setting of \"mlm\""}},
           {{"data.text.mask_probability=0.2"}, 78, {"is a setting of \"mlm\""}},
           {{"data.folder=x"}, 78, {"data.folder is not read by data.type \"text\""}},
           {{"data.text.train_file=pipe.tsv"},
            66,
            {"pipe.tsv: not a regular file", "what a pipe gives"}},
           {{"data.text.train_file=loop.tsv"}, 66, {"loop.tsv: Too many levels"}},
           {{"data.text.vocabulary=loop.tsv"}, 66, {"loop.tsv: Too many levels"}},
           {{"data.text.train_file=spaces.tsv", "data.text.labels=[]"},
            65,
            {"spaces.tsv:3: label \"bad \" has white space around it"}},
           {{"data.text.train_file=gaps.tsv", "data.text.labels=[]"},
            65,
            {"gaps.tsv:4: label \"\" is empty", "data.skip_bad_rows=true"}},
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

TEST_CASE("items that are too long are refused, with what makes them fit", "[text]") {
  const TinyText tiny;
  const auto bench = [&](const char* tokens) {
    return tiny.vcas({"bench", "--config", "tiny.json", "--steps", "1", "--pad-to", tokens});
  };
  const std::string hint =
      "  hint: shorten the items (data.synthetic.tokens, --pad-to), or raise model.max_positions "
      "of "
      "a new model\n";
  check_message(bench("20"), 78,
                "error: items have up to 20 tokens, and the model has 16 positions\n" + hint);
  check_message(tiny.train({"data.type=synthetic_text", "data.text.labels=[]",
                            "data.synthetic.tokens=40", "run.folder=bad"}),
                78, "error: items have up to 40 tokens, and the model has 16 positions\n" + hint);
  CHECK_FALSE(fs::exists(tiny.path() / "bad"));
  const Outcome small = bench("3");
  check_failure(small, 2, {" tokens, more than --pad-to 3\n"});
  CHECK(small.err.starts_with("error: an item has "));
  CHECK(small.err.ends_with("\n  hint: raise it to the tokens of the longest item\n"));
}
