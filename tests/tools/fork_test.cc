// Forks: new runs from a checkpoint, whose settings and data may differ.
#include "core/files.h"
#include "tests/support/catch.h"
#include "tests/tools/tiny_text.h"

namespace fs = std::filesystem;

namespace {

Outcome fork(const TinyText& tiny, const std::vector<std::string>& settings) {
  return tiny.train(with({"--resume", "out", "--resume-mode=fork", "run.folder=fork"}, settings));
}

void replace_all(const fs::path& file, const std::string& from, const std::string& to) {
  std::string text = content(file);
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  write_text(file, text);
}

}  // namespace

TEST_CASE("a fork matches its classes with the checkpoint's by name", "[fork]") {
  const TinyText tiny;
  succeeded(tiny.train({"run.folder=out"}));
  const double accuracy = tiny.end_of("out")["eval_accuracy"];
  REQUIRE(accuracy != 0.5);
  succeeded(fork(tiny, {"data.text.labels=[\"good\",\"bad\"]"}));
  CHECK(tiny.end_of("fork")["eval_accuracy"] == accuracy);
  // Which a run that goes on keeps too.
  const std::vector<std::string> other_order = {"data.text.labels=[\"good\",\"bad\"]",
                                                "train.steps=60", "train.checkpoint_every=10",
                                                "run.folder=fork"};
  std::vector<std::string> longer = other_order;
  longer.insert(longer.end(), {"--resume", "out", "--resume-mode=fork", "--overwrite"});
  const Outcome told = succeeded(tiny.train(longer));
  CHECK(contains(told.err,
                 "warning: data.text.labels has another order than the model, whose classes stay "
                 "bad, good\n"));
  const nlohmann::json end = tiny.end_of("fork");
  forget_after(tiny.path() / "fork", 50);
  longer = other_order;
  longer.push_back("--resume");
  succeeded(tiny.train(longer));
  CHECK(tiny.end_of("fork")["eval_loss"] == end["eval_loss"]);
  for (const char* table : {"train.tsv", "test.tsv"}) {
    replace_all(tiny.path() / table, "good", "a_good");
    replace_all(tiny.path() / table, "bad", "b_bad");
  }
  check_failure(
      fork(tiny, {"data.text.labels=[]", "--overwrite"}), 78,
      {"error: the model's classes are bad, good, the data's a_good, b_bad: the names differ\n"});
}

TEST_CASE("a fork has the weights of its checkpoint, and a folder of its own", "[fork]") {
  const TinyText tiny;
  succeeded(tiny.train({"run.folder=out"}));
  for (const char* setting : {"model.pretrained=none", "model.new_classifier=true"}) {
    CAPTURE(setting);
    check_failure(
        run(tiny.path(), {"vcas-train", "--resume", "out", "--resume-mode=fork", setting}), 78,
        {"error: model.pretrained and model.new_classifier are not those of ",
         ": a fork goes on with its weights\n"
         "  hint: leave them as they were; without --resume a run starts from "
         "model.pretrained\n"});
  }
  CHECK_FALSE(fs::exists(tiny.path() / "out-fork"));
  fs::create_directory(tiny.path() / "in");
  fs::copy(tiny.path() / "out/checkpoint-40", tiny.path() / "in/copy");
  const Outcome smaller = succeeded(run(tiny.path(), {"vcas-train", "--resume", "in/copy",
                                                      "--resume-mode=fork", "train.batch_size=4"}));
  CHECK(contains(smaller.err,
                 "warning: train.batch_size was 8 and is 4: epochs and the place in "
                 "the data are counted as if all steps had had 4 items\n"));
  CHECK(fs::exists(tiny.path() / "in/copy-fork/metrics.jsonl"));
  CHECK_FALSE(fs::exists(tiny.path() / "in-fork"));

  check_message(tiny.train({"--resume", "out", "run.folder=there"}), 2,
                "error: --set run.folder is there, and --resume goes on in out\n"
                "  hint: leave it out; --resume-mode=fork starts a new run there\n");
}

TEST_CASE("a fork with more or fewer items is told how its epochs are counted", "[fork]") {
  const TinyRun tiny;  // 256 items, in batches of 16
  succeeded(tiny.train({"run.folder=out"}));
  const auto warned = [&](const std::string& setting) {
    return succeeded(tiny.train({"--resume", "out", "--resume-mode=fork", "run.folder=fork",
                                 "--overwrite", "train.steps=41", setting}))
        .err;
  };
  CHECK(contains(warned("data.limit=80"),
                 "warning: the training data had 256 items and have 80: epochs and the place in "
                 "the data are counted as if there had always been 80\n"));
  CHECK(contains(warned("data.synthetic.items=272"), "had 256 items and have 272: "));
  const std::string same = "the training data had";
  CHECK_FALSE(contains(warned("data.limit=256"), same));
  CHECK_FALSE(contains(warned("data.synthetic.items=260"), same));  // an epoch has 16 steps too
  CHECK_FALSE(contains(warned("train.batch_size=8"), same));
  // Earlier versions did not save the number.
  const fs::path checkpoint = tiny.path() / "out/checkpoint-40";
  nlohmann::json state = tiny.json("out/checkpoint-40/trainer_state.json");
  state.erase("items");
  write_text(checkpoint / "trainer_state.json", state.dump());
  vcas::write_manifest(checkpoint);
  CHECK_FALSE(contains(warned("data.limit=80"), same));
}

TEST_CASE("a fork may name the weights of its source otherwise, and a newer checkpoint", "[fork]") {
  const TinyText tiny;
  succeeded(tiny.train({"run.folder=words"}));
  succeeded(tiny.train({"run.folder=out", "model.pretrained=words"}));
  succeeded(tiny.train({"run.folder=words", "train.steps=60", "--overwrite"}));
  for (const char* name : {"words", "./words", "words/best"}) {
    const Outcome forked =
        fork(tiny, {"--overwrite", "train.steps=41", "model.pretrained=" + std::string(name)});
    CAPTURE(name, forked.err);
    CHECK(forked.code == 0);
  }
  CHECK(fork(tiny, {"--overwrite", "model.pretrained=out"}).code == 78);
}

TEST_CASE("a fork with another vocabulary is worth a warning", "[fork]") {
  const TinyText tiny;
  succeeded(tiny.train({"run.folder=out"}));
  const std::string warning =
      "vocab.txt is not the vocabulary that out/checkpoint-40 was trained with: its tokens may "
      "have other numbers";
  CHECK_FALSE(contains(fork(tiny, {"--validate"}).err, warning));
  replace_all(tiny.path() / "vocab.txt", "a\nb\n", "b\na\n");
  CHECK(contains(fork(tiny, {"--validate"}).err, "warning: " + warning));
  CHECK(contains(fork(tiny, {}).err, "warning: " + warning));
}

TEST_CASE("a fork without a step left says so, and has no loss of its own", "[fork]") {
  const TinyText tiny;
  succeeded(tiny.train({"run.folder=out"}));
  const Outcome done = succeeded(fork(tiny, {}));
  CHECK(contains(done.err,
                 "warning: no step is left: out/checkpoint-40 is of step 40, and the run ends with "
                 "step 40\n  hint: raise train.steps or train.epochs: a fork counts from the first "
                 "step of its weights\n"));
  CHECK(tiny.end_of("fork")["train_loss"].is_null());
  CHECK(tiny.end_of("fork")["eval_loss"] == tiny.end_of("out")["eval_loss"]);
  const Outcome one = fork(tiny, {"train.steps=41", "--overwrite"});
  CHECK_FALSE(contains(one.err, "no step is left"));
  CHECK(tiny.end_of("fork")["totals"]["late_steps"] == 1);
}

TEST_CASE("a fork keeps the optimizer", "[fork]") {
  const TinyText tiny;
  succeeded(tiny.train({"run.folder=out"}));
  check_message(
      fork(tiny, {"optimizer.name=sgd"}), 78,
      "error: optimizer.name is adamw in out/checkpoint-40 and sgd here: a fork goes on with the "
      "state of the optimizer\n"
      "  hint: leave it as it was; model.pretrained starts from the weights "
      "alone\n");
  CHECK_FALSE(fs::exists(tiny.path() / "fork"));
  succeeded(fork(tiny, {"optimizer.name=adam"}));  // which has the same moments
}

TEST_CASE("a fork evaluates on nothing that its checkpoint was trained on", "[fork]") {
  const TinyText tiny;
  const auto held_out = [&](const std::vector<std::string>& settings) {
    return with(settings, {"data.validation_share=0.25", "data.text.test_file="});
  };
  succeeded(tiny.train(held_out({"run.folder=out"})));
  succeeded(fork(tiny, held_out({"--validate", "data.text.max_length=10"})));
  fs::copy_file(tiny.path() / "vocab.txt", tiny.path() / "copy.txt");
  CHECK(fork(tiny, held_out({"--validate", "data.text.vocabulary=copy.txt"})).err.empty());
  const TinyRun synthetic;
  succeeded(synthetic.train({"run.folder=out", "train.steps=1"}));
  check_failure(synthetic.train({"--resume", "out", "--resume-mode=fork", "--validate",
                                 "data.validation_share=0.25"}),
                78,
                {"data.validation_share is 0.0 in the checkpoint and 0.25 here: items "
                 "that were trained on could be evaluated on"});
  CHECK(synthetic
            .train({"--resume", "out", "--resume-mode=fork", "--validate", "seed=5",
                    "data.validation_share=0.25"})
            .code == 0);  // other items
  const auto as_mlm = [&](const std::vector<std::string>& settings) {
    return held_out(with(settings, {"data.type=mlm", "model.head=mlm", "data.text.labels=[]",
                                    "data.text.train_file=corpus.txt"}));
  };
  succeeded(tiny.train(as_mlm({"run.folder=mlm", "train.steps=1", "train.batch_size=1"})));
  check_failure(tiny.train(as_mlm({"--resume", "mlm", "--resume-mode=fork", "--validate",
                                   "data.text.max_length=10", "train.batch_size=1"})),
                78, {"data.text.max_length is 12 in the checkpoint and 10 here"});
  write_text(tiny.path() / "train.tsv", content(tiny.path() / "train.tsv") + "c\tgood\n");
  check_message(
      fork(tiny, held_out({"--validate"})), 78,
      "error: train.tsv is not what out/checkpoint-40 was trained with: items that were trained "
      "on could be evaluated on\n"
      "  hint: bring the file back; data.validation_share=0 takes the evaluation data\n");
}
