#include "tests/support/catch.h"
#include "tests/tools/tiny_images.h"

namespace fs = std::filesystem;

TEST_CASE("idx files have classes and statistics of their own, to the export", "[image]") {
  const TinyImages tiny;
  write_idx(tiny.path() / "idx", "train", 96);
  write_idx(tiny.path() / "idx", "t10k", 48);
  succeeded(train_idx(tiny, {"run.folder=out"}));
  CHECK(tiny.end_of("out")["eval_accuracy"] == 1.0);
  succeeded(run(tiny.path(), {"export", "--model", "out/last", "--to", "hf"}));
  CHECK(tiny.json("hf/config.json")["id2label"] ==
        nlohmann::json{{"0", "0"}, {"1", "1"}, {"2", "2"}});
  const nlohmann::json processor = tiny.json("hf/preprocessor_config.json");
  CHECK(processor["image_mean"].at(0).get<double>() > 0.3);
  CHECK(processor["image_std"].at(0).get<double>() > 0.2);

  // As checkpoints were whose data had the names and statistics of Fashion-MNIST.
  succeeded(train_idx(tiny, {"run.folder=old", "data.type=fashion_mnist"}));
  CHECK(tiny.json("old/last/model.json")["class_names"][0] == "T-shirt/top");
  const Outcome old =
      succeeded(run(tiny.path(), {"eval", "--model", "old/last", "--json", "data.type=idx"}));
  CHECK(nlohmann::json::parse(old.out)["eval_loss"] == tiny.end_of("old")["eval_loss"]);
}

TEST_CASE("a share of the training data is evaluated on, in eval and after a resume too",
          "[image]") {
  const TinyImages tiny;
  write_idx(tiny.path() / "idx", "train", 96);
  check_failure(train_idx(tiny, {"run.folder=out"}), 66,
                {"idx/t10k-images-idx3-ubyte: no such file",
                 "data.validation_share=0.1 does without the last two"});
  const auto train = [&](const std::vector<std::string>& settings) {
    const Outcome outcome = succeeded(
        train_idx(tiny, with(settings, {"data.validation_share=0.25", "train.eval_every=30"})));
    return outcome;
  };
  CHECK(contains(train({"run.folder=out"}).err, "train 72 · test 24 held out"));
  const nlohmann::json end = tiny.end_of("out");
  CHECK(end["eval_accuracy"] == 1.0);
  const auto eval = [&](const std::string& setting) {
    return run(tiny.path(), {"eval", "--model", "out/last", "--json", "--set", setting});
  };
  CHECK(nlohmann::json::parse(eval("threads=1").out)["eval_loss"] == end["eval_loss"]);
  CHECK(nlohmann::json::parse(eval("threads=1").out)["eval_items"] == 24);
  const Outcome other = eval("seed=1");
  check_failure(other, 78,
                {"seed is 0 in the checkpoint and 1 here: items that were trained on could be "
                 "evaluated on"});
  for (const char* setting : {"data.validation_share=0.3", "data.type=fashion_mnist"})
    CHECK(eval(setting).code == 78);
  CHECK(nlohmann::json::parse(eval("data.eval_limit=8").out)["eval_items"] == 8);
  // A fork is held to it too, unless its data are others.
  const auto fork = [&](const std::vector<std::string>& settings) {
    return run(tiny.path(), with({"vcas-train", "--resume", "out/checkpoint-30",
                                  "--resume-mode=fork", "--validate"},
                                 settings));
  };
  succeeded(fork({"optimizer.weight_decay=0.1"}));
  check_message(
      fork({"seed=1"}), 78,
      "error: seed is 0 in the checkpoint and 1 here: items that were trained on could be "
      "evaluated on\n  hint: leave it as it was; data.validation_share=0 takes the evaluation "
      "data\n");
  CHECK(contains(fork({"data.validation_share=0.3"}).err,
                 "data.validation_share is 0.25 in the checkpoint and 0.3 here: items that"));
  fs::copy(tiny.path() / "idx", tiny.path() / "copy");
  CHECK(fork({"seed=1", "data.folder=copy"}).code == 78);
  succeeded(fork({"data.folder=copy"}));
  write_idx(tiny.path() / "other", "train", 120);
  const Outcome unknown = succeeded(fork({"seed=1", "data.folder=other"}));
  CHECK(contains(unknown.err,
                 "/out/checkpoint-30 has not read other/train-images-idx3-ubyte, "
                 "other/train-labels-idx1-ubyte: if it was trained on some of these items, they "
                 "could be evaluated on\n"));
  write_idx(tiny.path() / "idx", "t10k", 48);
  succeeded(fork({"seed=1", "data.validation_share=0"}));
  CHECK(nlohmann::json::parse(eval("data.validation_share=0").out)["eval_items"] == 48);
  fs::remove(tiny.path() / "idx/t10k-images-idx3-ubyte");
  fs::remove(tiny.path() / "idx/t10k-labels-idx1-ubyte");

  // The files may move, but not change.
  fs::rename(tiny.path() / "idx", tiny.path() / "moved");
  CHECK(nlohmann::json::parse(eval("data.folder=moved").out)["eval_loss"] == end["eval_loss"]);
  write_idx(tiny.path() / "idx", "train", 120);
  const Outcome changed = eval("threads=1");
  CHECK(changed.code == 65);
  check_failure(fork({}), 78, {"idx/train-images-idx3-ubyte is not what "});
  check_contains(changed.err,
                 {"idx/train-images-idx3-ubyte is not what ",
                  "was trained with: items that were trained on could be evaluated on\n"
                  "  hint: bring the file back; data.validation_share=0 takes the "});
  fs::remove_all(tiny.path() / "idx");
  fs::rename(tiny.path() / "moved", tiny.path() / "idx");

  forget_after(tiny.path() / "out", 30);
  train({"run.folder=out", "--resume", "data.threads=2"});
  CHECK(tiny.end_of("out")["eval_loss"] == end["eval_loss"]);
}

TEST_CASE("test images are of the size of those of training", "[image]") {
  const TinyImages tiny;
  write_idx(tiny.path() / "idx", "train", 96);
  write_idx(tiny.path() / "idx", "t10k", 48, 8);
  for (const char* how : {"--validate", "run.folder=out"}) {
    check_message(
        train_idx(tiny, {how}), 65,
        "error: the test data have items of 1 x 8 x 8, and those of training are 1 x 8 x 6\n"
        "  hint: data.type and data.folder name the data\n");
  }
}

TEST_CASE("a class without a training item is worth a warning", "[image]") {
  const TinyImages tiny;
  write_idx(tiny.path() / "idx", "train", 96);
  write_idx(tiny.path() / "idx", "t10k", 48);
  const fs::path labels = tiny.path() / "idx/train-labels-idx1-ubyte";
  const Outcome all = succeeded(train_idx(tiny, {"--validate"}));
  CHECK_FALSE(contains(all.err, "warning"));
  std::string damaged = content(labels);
  damaged.back() = 6;
  write_text(labels, damaged);
  CHECK(contains(train_idx(tiny, {"--validate"}).err,
                 "warning: 3 of 7 classes have no training item: 3, 4, 5\n"));
  CHECK(contains(train_idx(tiny, {"--validate", "data.limit=2", "train.batch_size=2"}).err,
                 " of 7 classes have no training item: "));
  damaged.replace(damaged.size() - 96, 96, 96, '\0');
  write_text(labels, damaged);
  write_text(
      tiny.path() / "idx/t10k-labels-idx1-ubyte",
      content(tiny.path() / "idx/t10k-labels-idx1-ubyte").substr(0, 8) + std::string(48, '\0'));
  check_message(
      train_idx(tiny, {"--validate"}), 65,
      "error: \"0\" is the only class of the training data, and a classifier needs two\n");
}

TEST_CASE("labels of idx files are predicted, with numbers", "[image]") {
  const TinyImages tiny;
  write_idx(tiny.path() / "idx", "train", 96);
  write_idx(tiny.path() / "idx", "t10k", 6);
  succeeded(train_idx(tiny, {"run.folder=grey"}));
  const Outcome grey = run(
      tiny.path(), {"predict", "--model", "grey/best", "--input", "idx/t10k-images-idx3-ubyte"});
  CHECK(grey.out == "index\tprediction\n0\t0\n1\t1\n2\t2\n3\t0\n4\t1\n5\t2\n");
  check_failure(run(tiny.path(),
                    {"predict", "--model", "grey/best", "--input", "idx/t10k-labels-idx1-ubyte"}),
                65, {"14 bytes, expected an IDX header of 16"});

  if (!contains(run(tiny.path(), {"--version"}).out, "JPEG: yes")) return;
  fs::copy_file(fs::path(VCAS_SOURCE_DIR) / "tests/golden/images/red.jpg", tiny.path() / "red.jpg");
  // Pictures of another size, of a model that reads 8 x 6 in grey.
  const Outcome picture =
      succeeded(run(tiny.path(), {"predict", "--model", "grey/best", "--input", "red.jpg"}));
  CHECK(picture.out.starts_with("file\tprediction\nred.jpg\t"));
}
