// Runs that start from the weights of other runs.
#include "tests/support/catch.h"
#include "tests/tools/tiny_images.h"
#include "tests/tools/tiny_text.h"

namespace fs = std::filesystem;

namespace {

double eval_loss(const fs::path& run) {
  return vcas::read_metrics(run / "metrics.jsonl").back()["eval_loss"];
}

// A step that changes nothing.
const std::vector<std::string> kStill = {"train.steps=1", "schedule.learning_rate=1e-30"};

}  // namespace

TEST_CASE("a run starts from the weights of another run, of any model", "[pretrained]") {
  const TinyRun tiny;
  const std::vector<std::string> vit, mlp = {"model.type=mlp", "model.width=12", "model.depth=2"},
                                      resnet = {"model.type=resnet", "model.stem=cifar",
                                                "model.stages=[1,1]", "model.widths=[8,16]"};
  // Sizes that were left out are those of the weights.
  for (const auto& [type, sizes, left_out] :
       {std::tuple{"vit", vit, std::vector<std::string>()},
        {"mlp", mlp, std::vector<std::string>{"model.type=mlp"}},
        {"resnet", resnet, {"model.type=resnet", "model.norm=frozen"}}}) {
    INFO(type);
    if (type != std::string("vit")) {
      write_text(tiny.path() / "tiny.json", R"({
  "threads": 1,
  "data": {"type": "synthetic",
           "synthetic": {"items": 256, "eval_items": 64, "classes": 4, "shape": [1, 8, 8]}},
  "train": {"steps": 10, "batch_size": 16}, "schedule": {"learning_rate": 0.003}
})");
    }
    succeeded(tiny.train(with(sizes, {"run.folder=out", "--overwrite"})));
    for (const char* named : {"out", "out/best", "out/last/model.safetensors"}) {
      const Outcome again = succeeded(
          tiny.train(with(with(left_out, kStill), {"run.folder=again", "--overwrite",
                                                   std::string("model.pretrained=") + named})));
      CHECK(contains(again.err, "model.safetensors   loaded "));
      CHECK_FALSE(contains(again.err, "; new: "));
      if (named != std::string("out/best"))
        CHECK(eval_loss(tiny.path() / "again") == eval_loss(tiny.path() / "out"));
    }
  }
  // The last of them is a ResNet.
  const auto start = [&](const std::vector<std::string>& more) {
    return tiny.train(with({"model.type=resnet", "run.folder=more", "--overwrite", "train.steps=1",
                            "model.pretrained=out"},
                           more));
  };
  const Outcome other = start({"data.synthetic.classes=3"});
  check_failure(
      other, 78,
      {"error: classifier.weight has shape [4, 16] in out/checkpoint-10/model.safetensors "
       "but the model has [3, 16]\n"
       "  hint: the weights were trained for another task; model.new_classifier=true "
       "starts a new classifier\n"});
  const Outcome anew = succeeded(start({"data.synthetic.classes=3", "model.new_classifier=true"}));
  CHECK(contains(anew.err, "; new: classifier.weight, classifier.bias\n"));
  succeeded(start({"model.norm=frozen"}));
  check_failure(
      start({"model.widths=[8,8,8,8]"}), 78,
      {"--set model.widths: model.widths is [8,8,8,8], but out/checkpoint-10/config.json says "
       "[8,16]\n  hint: leave these settings out: the weights were trained so\n"});
  check_failure(start({"model.type=mlp"}), 78,
                {"error: model.type is \"mlp\", but out/checkpoint-10/config.json is a resnet\n"});
  for (const char* none : {"out/checkpoint-9", "out/bset", "out/config.json", "out/best/none"}) {
    const Outcome absent = start({std::string("model.pretrained=") + none});
    CAPTURE(none, absent.err);
    CHECK(absent.code != 0);
    CHECK(contains(absent.err, none));
  }
  check_failure(start({"run.folder=out"}), 73,
                {"error: out: holds out/checkpoint-10, which the new run starts from\n"});
  // A checkpoint of transformers' own trainer is a Hugging Face folder.
  fs::create_directories(tiny.path() / "theirs");
  write_text(tiny.path() / "theirs/trainer_state.json", "{}");
  CHECK(contains(start({"model.pretrained=theirs"}).err, "theirs/model.safetensors: no such file"));
  succeeded(start({"train.steps=4", "train.checkpoint_every=2"}));
  const double end = eval_loss(tiny.path() / "more");
  const fs::path weights = tiny.path() / "out/checkpoint-10/model.safetensors";
  std::string bytes = content(weights);
  bytes.back() ^= 1;
  write_text(weights, bytes);
  check_failure(start({"run.folder=other"}), 65, {"model.safetensors"});
  // A run that goes on has all that it needs.
  forget_after(tiny.path() / "more", 2);
  fs::remove_all(tiny.path() / "out");
  succeeded(run(tiny.path(), {"vcas-train", "--resume", "more"}));
  CHECK(eval_loss(tiny.path() / "more") == end);
}

TEST_CASE("images become those that the weights of a run were trained with", "[pretrained]") {
  const TinyImages tiny;
  write_idx(tiny.path() / "idx", "train", 60);
  write_idx(tiny.path() / "idx", "t10k", 30);
  succeeded(train_idx(
      tiny, {"run.folder=out", "train.steps=4", "data.image.mean=[0.25]", "data.image.std=[0.5]"}));
  const Outcome again = succeeded(tiny.train(
      with(kStill, {"data.type=idx", "data.folder=idx", "data.image.crop_scale=[]",
                    "model.new_classifier=false", "run.folder=again", "model.pretrained=out"})));
  CHECK(eval_loss(tiny.path() / "again") == eval_loss(tiny.path() / "out"));
}

TEST_CASE("a classifier starts from a run of masked words", "[pretrained]") {
  const TinyText tiny;
  succeeded(tiny.train({"run.folder=words", "data.type=mlm", "model.head=mlm", "train.steps=2",
                        "train.batch_size=2", "data.text.train_file=corpus.txt",
                        "data.text.test_file=corpus.txt", "data.text.labels=[]"}));
  const std::vector<std::string> classify = {"model.pretrained=words", "run.folder=classes",
                                             "--overwrite", "train.steps=2"};
  const Outcome classes = succeeded(tiny.train(with(classify, {"data.text.vocabulary="})));
  CHECK(contains(classes.err,
                 "; new: bert.pooler.dense.weight, bert.pooler.dense.bias, "
                 "classifier.weight, classifier.bias; unused: cls.predictions"));
  CHECK_FALSE(contains(classes.err, "warning"));
  write_text(tiny.path() / "other.txt",
             "[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\nd\nc\nb\na\n##a\n##b\n");
  const Outcome other = succeeded(tiny.train(with(classify, {"data.text.vocabulary=other.txt"})));
  CHECK(contains(other.err,
                 "warning: other.txt is not the vocabulary that words/checkpoint-2 was "
                 "trained with: its tokens may have other numbers\n"));
  succeeded(run(tiny.path(), {"export", "--model", "words/last", "--to", "hf"}));
  const auto from_folder = [&](const std::string& vocabulary) {
    return tiny.train(with(classify, {"model.pretrained=hf", "data.text.vocabulary=" + vocabulary}))
        .err;
  };
  CHECK(contains(from_folder("other.txt"),
                 "warning: other.txt is not the vocabulary that hf was trained with: "));
  CHECK_FALSE(contains(from_folder("vocab.txt"), "warning"));

  // A head is of one piece.
  succeeded(tiny.train({"run.folder=words", "--overwrite", "model.pooling=mean"}));
  check_failure(tiny.train(classify), 78,
                {"error: words/checkpoint-40/model.safetensors was trained with another head: they "
                 "differ in bert.pooler.dense.weight, bert.pooler.dense.bias\n"
                 "  hint: model.head and model.pooling say which; model.new_classifier=true starts "
                 "a new classifier\n"});
  succeeded(tiny.train(with(classify, {"model.new_classifier=true"})));
  succeeded(tiny.train(with(classify, {"model.pooling=mean"})));
  succeeded(tiny.train({"run.folder=first", "train.steps=2"}));
  check_failure(tiny.train(with(classify, {"model.pretrained=first", "model.pooling=mean"})), 78,
                {"another head: they differ in bert.pooler.dense.bias, bert.pooler."});
  for (const char* name : {"train.tsv", "test.tsv"})
    write_text(tiny.path() / name, "sentence\tlabel\na a\t1\nb b\t0.5\na b\t2\nc\t3\n");
  check_failure(tiny.train(with(classify, {"model.pooling=mean", "model.head=regression",
                                           "data.text.labels=[]", "train.batch_size=2"})),
                78,
                {"error: words/checkpoint-40/config.json: model.head is \"classification\", and "
                 "\"regression\" here\n"});
}

TEST_CASE("a run goes on while the one that it started from goes on too", "[pretrained]") {
  const TinyText tiny;
  succeeded(tiny.train({"run.folder=out", "train.steps=4", "train.checkpoint_every=2"}));
  const std::vector<std::string> child = {"model.pretrained=out", "run.folder=child",
                                          "train.steps=4", "train.checkpoint_every=2",
                                          "data.text.vocabulary="};
  succeeded(tiny.train(child));
  CHECK(tiny.json("child/config.json")["model"]["pretrained"] == "out/checkpoint-4");
  const double end = eval_loss(tiny.path() / "child");
  forget_after(tiny.path() / "child", 2);
  forget_after(tiny.path() / "out", 2);
  for (const auto& resume : {std::vector<std::string>{"vcas-train", "--resume", "child"},
                             with(with({"vcas-train", "-c", "tiny.json"}, child), {"--resume"})}) {
    succeeded(tiny.vcas(resume));
    CHECK(eval_loss(tiny.path() / "child") == end);
    forget_after(tiny.path() / "child", 2);
  }
}

TEST_CASE("what weights were trained on is not held out", "[pretrained]") {
  const TinyText tiny;
  const std::vector<std::string> share = {"data.validation_share=0.25", "data.text.test_file="};
  succeeded(tiny.train(with(share, {"run.folder=out", "train.steps=2"})));
  const auto start = [&](const std::vector<std::string>& more) {
    return tiny.train(with(
        with(share, {"model.pretrained=out", "run.folder=again", "--overwrite", "train.steps=2"}),
        more));
  };
  succeeded(start({}));
  check_failure(start({"seed=1"}), 78,
                {"error: seed is 0 in the checkpoint and 1 here: items that were trained "
                 "on could be evaluated on\n"});
  succeeded(start({"seed=1", "data.validation_share=0", "data.text.test_file=test.tsv"}));
  // Other data are none of those.
  write_text(tiny.path() / "more.tsv", TinyText::table(48));
  const Outcome unknown = succeeded(start({"seed=1", "data.text.train_file=more.tsv"}));
  CHECK(contains(unknown.err,
                 "warning: out/checkpoint-2 has not read more.tsv: if it was trained "
                 "on some of these items, they could be evaluated on\n"));
  const Outcome task = start({"seed=1", "data.text.train_file=more.tsv",
                              "model.new_classifier=true", "train.batch_size=4"});
  CHECK_FALSE(contains(task.err, "warning"));
}
