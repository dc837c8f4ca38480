// Runs that start from weights in Hugging Face's form, and exports in it.
#include <nlohmann/json.hpp>

#include "core/safetensors.h"
#include "tests/support/catch.h"
#include "tests/tools/program.h"

namespace fs = std::filesystem;

TEST_CASE("a run starts from weights in Hugging Face's form") {
  const TinyRun tiny;
  const Outcome sized =
      tiny.train({std::string("model.pretrained=") + VCAS_SOURCE_DIR + "/tests/golden/hf/vit",
                  "model.width=16", "data.synthetic.shape=[3,8,8]"});
  check_failure(
      sized, 78,
      {"tiny.json:5:62: model.heads is 2, but ", "tests/golden/hf/vit/config.json says 4\n",
       "tiny.json:5:88: model.dropout is 0.1, but "});
  CHECK_FALSE(contains(sized.err, "model.width"));      // it agrees
  CHECK_FALSE(contains(sized.err, "model.ffn_ratio"));  // it was not given
  CHECK(contains(sized.err, "hint: leave these settings out"));
  std::string sizeless = content(tiny.path() / "tiny.json");
  const std::size_t sizes = sizeless.find(", \"width\": 16");
  sizeless.erase(sizes, sizeless.find('}', sizes) - sizes);
  write_text(tiny.path() / "tiny.json", sizeless);
  const std::string pretrained =
      std::string("model.pretrained=") + VCAS_SOURCE_DIR + "/tests/golden/hf/vit";
  const std::vector<std::string> common = {pretrained, "data.synthetic.shape=[3,8,8]",
                                           "train.steps=2", "model.width=16"};
  const auto train = [&](const std::string& classes, const std::string& folder,
                         const std::string& more) {
    std::vector<std::string> arguments = common;
    arguments.insert(arguments.end(),
                     {"data.synthetic.classes=" + classes, "run.folder=" + folder, more});
    return tiny.train(arguments);
  };
  const Outcome same = succeeded(train("3", "same", "seed=1"));
  check_contains(same.err,
                 {"loaded 40 tensors\n",
                  "warning: the model's classes are LABEL_0, LABEL_1, LABEL_2, the data's 0, 1, 2: "
                  "they cannot be matched by name"});
  check_failure(train("4", "other", "seed=1"), 78,
                {"classifier.weight has shape [3, 16]", "model.new_classifier=true"});
  const Outcome printed = tiny.train(
      {pretrained, "data.synthetic.shape=[3,8,8]", "data.synthetic.classes=3", "--print-config"});
  write_text(tiny.path() / "printed.json", printed.out);
  succeeded(run(tiny.path(), {"vcas-train", "-c", "printed.json", "--validate"}));
  const Outcome anew = succeeded(train("4", "anew", "model.new_classifier=true"));
  CHECK(contains(anew.err, "; new: classifier.weight, classifier.bias"));

  // Names that match decide which number a class has.
  fs::copy(pretrained.substr(pretrained.find('=') + 1), tiny.path() / "named");
  const auto eval_loss = [&](const std::string& folder) {
    return tiny.end_of(folder)["eval_loss"];
  };
  const auto named = [&](const std::string& names, const std::string& folder) {
    nlohmann::json config = tiny.json("named/config.json");
    config["id2label"] = nlohmann::json::parse(names);
    write_text(tiny.path() / "named/config.json", config.dump());
    const Outcome run = succeeded(
        tiny.train({"model.pretrained=named", "data.synthetic.shape=[3,8,8]", "train.steps=2",
                    "data.synthetic.classes=3", "seed=1", "run.folder=" + folder}));
    CHECK_FALSE(contains(run.err, "the model's classes are"));
    return eval_loss(folder);
  };
  check_failure(run(tiny.path(), {"eval", "--model", "named"}), 66,
                {"named: a Hugging Face folder, no checkpoint"});
  CHECK(named(R"({"0": "0", "1": "1", "2": "2"})", "in_order") == eval_loss("same"));
  CHECK(named(R"({"0": "1", "1": "2", "2": "0"})", "turned") != eval_loss("same"));
  succeeded(tiny.train({"model.pretrained=named", "data.synthetic.shape=[3,8,8]", "train.steps=2",
                        "data.synthetic.classes=3", "seed=1", "run.folder=in_order",
                        "--resume"}));  // a run keeps the order that it has
  CHECK(eval_loss("in_order") == eval_loss("same"));
}

TEST_CASE("the classes of a pretrained ResNet keep their numbers too") {
  const TinyRun tiny;
  fs::copy(VCAS_SOURCE_DIR "/tests/golden/hf/resnet_basic", tiny.path() / "named");
  nlohmann::json config = tiny.json("named/config.json");
  config["id2label"] = {{"0", "1"}, {"1", "2"}, {"2", "0"}};
  write_text(tiny.path() / "named/config.json", config.dump());
  write_text(tiny.path() / "resnet.json", R"({
  "data": {"type": "synthetic", "synthetic": {"classes": 3, "shape": [3, 20, 20]}},
  "model": {"type": "resnet", "pretrained": "named"},
  "method": {"type": "exact"}
})");
  const auto check_classes = [&] {
    const Outcome valid =
        succeeded(run(tiny.path(), {"vcas-train", "--config", "resnet.json", "--validate"}));
    CHECK(contains(valid.out, "3 classes: 1, 2, 0"));
  };
  check_classes();
  // With the names of torchvision.
  const vcas::SafetensorsFile stored(VCAS_SOURCE_DIR
                                     "/tests/golden/hf/resnet_basic/model.safetensors");
  std::vector<vcas::StoredTensor> tensors(stored.tensors().begin(), stored.tensors().end());
  for (vcas::StoredTensor& tensor : tensors)
    if (const std::string head = "classifier.1."; tensor.name.starts_with(head))
      tensor.name.replace(0, head.size(), "fc.");
  write_safetensors(tiny.path() / "named/model.safetensors", tensors);
  check_classes();
}

TEST_CASE("a ViT whose classifier reads the mean is exported and loaded again") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out", "model.pooling=mean", "data.synthetic.shape=[3,8,8]",
                        "train.steps=2", "model.dropout=0"}));
  const Outcome exported =
      succeeded(run(tiny.path(), {"export", "--model", "out/last", "--to", "hf"}));
  const nlohmann::json config = tiny.json("hf/config.json");
  CHECK(config["architectures"] == nlohmann::json{"SiglipForImageClassification"});
  CHECK(config["vision_config"]["image_size"] == 8);
  const Outcome again = succeeded(tiny.train(
      {"run.folder=again", "model.pooling=mean", "model.dropout=0", "model.pretrained=hf",
       "data.synthetic.shape=[3,8,8]", "train.steps=1", "schedule.learning_rate=1e-30"}));
  const auto eval_loss = [&](const char* folder) { return tiny.end_of(folder)["eval_loss"]; };
  CHECK(eval_loss("again") == eval_loss("out"));
  check_failure(tiny.train({"run.folder=first", "model.pooling=first", "model.dropout=0",
                            "model.pretrained=hf", "data.synthetic.shape=[3,8,8]"}),
                78, {R"(model.pooling is "first", but hf/config.json says "mean")"});

  // What cannot be exported is said before the training.
  const Outcome warned =
      succeeded(tiny.train({"--validate", "model.pooling=mean", "data.synthetic.shape=[3,8,12]"}));
  CHECK(contains(warned.err,
                 "warning: vcas export will not write the trained model: transformers has no class "
                 "for images of 8 x 12 with model.pooling \"mean\"\n"));
}
