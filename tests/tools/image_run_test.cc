#include <nlohmann/json.hpp>

#include "core/metrics.h"
#include "tests/support/catch.h"
#include "tests/tools/program.h"

namespace fs = std::filesystem;

namespace {

const fs::path kGolden = fs::path(VCAS_SOURCE_DIR) / "tests/golden";

// A pretrained Vision Transformer that reads 8 x 8, CIFAR-10 whose classes 2 and 5 are brighter at
// the top and at the bottom, and tiny.json to fine-tune the one on the other.
class TinyImages : public TemporaryFolder {
 public:
  TinyImages() {
    fs::create_directories(path() / "vit");
    for (const char* name : {"config.json", "model.safetensors"})
      fs::copy_file(kGolden / "hf/vit" / name, path() / "vit" / name);
    write_processor({{"image_mean", {0.5, 0.4, 0.3}}, {"image_std", {0.5, 0.25, 0.2}}});
    fs::create_directories(path() / "cifar");
    write_text(path() / "cifar/data_batch_1.bin", records(64));
    write_text(path() / "cifar/test_batch.bin", records(16));
    write_text(path() / "tiny.json", R"({
  "threads": 1,
  "data": {"type": "cifar10", "folder": "cifar", "flip": true, "image": {"crop_scale": [0.5, 1]}},
  "model": {"type": "vit", "pretrained": "vit", "new_classifier": true},
  "train": {"steps": 60, "batch_size": 16, "eval_every": 60},
  "optimizer": {"name": "adam"},
  "schedule": {"learning_rate": 0.01},
  "vcas": {"update_every": 10}
})");
  }

  void write_processor(const nlohmann::json& content) const {
    write_text(path() / "vit/preprocessor_config.json", content.dump());
  }
  Outcome train(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"vcas-train", "--config", "tiny.json"});
    return run(path(), arguments);
  }
  nlohmann::json end_of(const std::string& folder) const {
    return vcas::read_metrics(path() / folder / "metrics.jsonl").back();
  }
  nlohmann::json json(const std::string& name) const {
    return nlohmann::json::parse(content(path() / name));
  }

  static std::string records(int count) {
    std::string bytes;
    for (int i = 0; i < count; ++i) {
      bytes += static_cast<char>(i % 2 == 0 ? 2 : 5);
      for (int value = 0; value < 3072; ++value)
        bytes += static_cast<char>((value % 1024 < 512) == (i % 2 == 0) ? 170 + (value + i) % 60
                                                                        : 30 + (value * i) % 60);
    }
    return bytes;
  }
};

bool reads_jpeg(const fs::path& folder) {
  return contains(run(folder, {"--version"}).out, "JPEG: yes");
}

}  // namespace

TEST_CASE("a pretrained ViT is fine-tuned on resized CIFAR, exported and loaded again", "[image]") {
  const TinyImages tiny;
  const Outcome trained = tiny.train({"run.folder=out"});
  INFO(trained.err);
  REQUIRE(trained.code == 0);
  const nlohmann::json end = tiny.end_of("out");
  CHECK(end["eval_accuracy"] == 1.0);
  const auto eval_loss = [&](const std::string& setting) {
    const Outcome outcome =
        run(tiny.path(), {"eval", "--model", "out/last", "--json", "--set", setting});
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    return nlohmann::json::parse(outcome.out)["eval_loss"];
  };
  CHECK(eval_loss("seed=0") == end["eval_loss"]);
  // Each setting of the images counts, and those of the pretrained folder are the default.
  CHECK(eval_loss("data.image.mean=[0.5,0.4,0.3]") == end["eval_loss"]);
  CHECK(eval_loss("data.image.mean=[0.5,0.4,0.2]") != end["eval_loss"]);
  CHECK(eval_loss("data.image.std=[0.5,0.25,0.1]") != end["eval_loss"]);
  CHECK(eval_loss("data.image.short_side=12") != end["eval_loss"]);
  CHECK(eval_loss("data.image.interpolation=bilinear") == end["eval_loss"]);
  CHECK(eval_loss("data.image.interpolation=bicubic") != end["eval_loss"]);

  fs::create_directories(tiny.path() / "moved");
  fs::rename(tiny.path() / "vit", tiny.path() / "moved/vit");  // a checkpoint needs it no more
  CHECK(eval_loss("seed=0") == end["eval_loss"]);
  fs::rename(tiny.path() / "moved/vit", tiny.path() / "vit");
  const Outcome other =
      run(tiny.path(), {"eval", "--model", "out/last", "--set", "data.type=synthetic", "--set",
                        "data.synthetic.shape=[1,8,8]", "--set", "data.image.mean=[0.5]", "--set",
                        "data.image.std=[0.5]"});
  CHECK(other.code == 65);
  CHECK(contains(other.err,
                 "the test data have items of 1 x 8 x 8, and the model was trained on "
                 "3 x 8 x 8"));

  const auto first_loss = [&](const std::string& setting) {
    REQUIRE(tiny.train({"run.folder=first", "run.overwrite=true", "train.steps=1", setting}).code ==
            0);
    return tiny.end_of("first")["train_loss"];
  };
  const nlohmann::json loss = first_loss("data.image.crop_scale=[0.5,1]");
  CHECK(first_loss("data.image.crop_scale=[0.5,1]") == loss);
  CHECK(first_loss("data.image.crop_scale=[0.4,1]") != loss);
  CHECK(first_loss("data.image.crop_ratio=[1,1.3333333333333333]") != loss);
  CHECK(first_loss("data.image.crop_ratio=[0.75,1]") != loss);
  CHECK(first_loss("data.image.crop_scale=[]") != loss);

  REQUIRE(run(tiny.path(), {"export", "--model", "out/last", "--to", "hf"}).code == 0);
  CHECK(tiny.json("hf/config.json")["image_size"] == 8);
  CHECK(tiny.json("hf/preprocessor_config.json") ==
        nlohmann::json{{"image_processor_type", "ViTImageProcessor"},
                       {"do_resize", true},
                       {"size", {{"height", 8}, {"width", 8}}},
                       {"resample", 2},
                       {"do_rescale", true},
                       {"rescale_factor", 1.0 / 255},
                       {"do_normalize", true},
                       {"image_mean", {0.5, 0.4, 0.3}},
                       {"image_std", {0.5, 0.25, 0.2}}});
  const Outcome again =
      tiny.train({"run.folder=again", "model.pretrained=hf", "model.new_classifier=false",
                  "train.steps=1", "schedule.learning_rate=1e-30"});
  INFO(again.err);
  REQUIRE(again.code == 0);
  CHECK(tiny.end_of("again")["eval_loss"] == end["eval_loss"]);
}

TEST_CASE("settings of images that do not fit are refused before training", "[image]") {
  const TinyImages tiny;
  const auto check = [&](const std::string& setting, int code, const std::string& text) {
    const Outcome outcome = tiny.train({"--validate", setting});
    CAPTURE(setting, outcome.err);
    CHECK(outcome.code == code);
    CHECK(contains(outcome.err, text));
  };
  check("data.image.size=16", 78,
        "data.image.size is 16, but the model of vit/config.json reads images of 8 x 8");
  check("data.image.short_side=7", 78,
        "the short side of images is 7, but the size to cut out of them is 8");
  check("data.image.mean=[0.5]", 78, "mean has 1 values and std has 3, but the images have 3");
  check("data.image.crop_scale=[1]", 78, "data.image.crop_scale must be [low, high], or empty");
  check("data.image.crop_ratio=[2,1]", 78, "data.image.crop_ratio must be [low, high]");
  tiny.write_processor({{"resample", 1}});
  check("seed=1", 78,
        "vit/preprocessor_config.json: \"resample\" is 1, and only 2 (bilinear) and 3 (bicubic)");
  tiny.write_processor({{"rescale_factor", 0.5}});
  check("seed=1", 78, "\"rescale_factor\" is 0.5, and only 1/255 is supported");
  tiny.write_processor({{"do_normalize", false}});
  check("seed=1", 78, "\"do_normalize\" is false, and only true is supported");
  fs::remove(tiny.path() / "vit/preprocessor_config.json");
  CHECK(tiny.train({"--validate"}).code == 0);
}

TEST_CASE("recipes with pretrained weights say what is missing", "[image]") {
  const TinyImages tiny;
  const auto validate = [&](const std::string& name, std::vector<std::string> settings) {
    settings.insert(settings.begin(),
                    {"train", "--config",
                     std::string(VCAS_SOURCE_DIR) + "/configs/" + name + ".json", "--validate"});
    return run(tiny.path(), settings);
  };
  const Outcome weights = validate("vit_base_cifar10", {});
  CHECK(weights.code == 66);
  CHECK(contains(weights.err, "vit-base-patch16-224-in21k: no such file or folder"));
  CHECK(contains(weights.err,
                 "hint: model.pretrained is a folder with config.json, "
                 "model.safetensors and, of texts, vocab.txt, of images, "
                 "preprocessor_config.json"));
  const Outcome records = validate("vit_base_cifar10", {"model.pretrained=vit"});
  CHECK(records.code == 66);
  CHECK(contains(records.err, "data/cifar-10-batches-bin: none of data_batch_1.bin"));
  CHECK(contains(records.err, "hint: unpack cifar-10-binary.tar.gz"));
  const Outcome hundred = validate("vit_base_cifar100", {"model.pretrained=vit"});
  CHECK(hundred.code == 66);
  CHECK(contains(hundred.err, "data/cifar-100-binary/train.bin: no such file"));
  const Outcome folder = validate("vit_base_imagenet", {"model.pretrained=vit"});
  CHECK(folder.code == 66);
  CHECK(contains(folder.err, "data/imagenet/train: no such folder"));
  CHECK(
      contains(folder.err, "hint: data.folder holds train/CLASS/FILE.jpg and val/CLASS/FILE.jpg"));

  const Outcome ready = validate("vit_base_cifar10", {"model.pretrained=vit", "data.folder=cifar",
                                                      "model.new_classifier=true"});
  INFO(ready.err);
  CHECK(ready.code == 0);
  CHECK(contains(ready.out, "data 64 train, 16 test, 10 classes"));
}

TEST_CASE("a folder of JPEG files trains, and its classes are written down", "[image]") {
  const TinyImages tiny;
  const std::vector<std::string> folder = {"data.type=image_folder", "data.folder=images"};
  const auto train = [&](std::vector<std::string> settings) {
    settings.insert(settings.end(), folder.begin(), folder.end());
    return tiny.train(settings);
  };
  for (const char* colour : {"red", "blue"})
    for (const char* split : {"train", "val"}) {
      fs::create_directories(tiny.path() / "images" / split / colour);
      for (int copy = 0; copy < 8; ++copy)
        fs::copy_file(kGolden / "images" / (std::string(colour) + ".jpg"),
                      tiny.path() / "images" / split / colour / (std::to_string(copy) + ".jpg"));
    }
  if (!reads_jpeg(tiny.path())) {
    const Outcome outcome = train({"run.folder=out"});
    CHECK(outcome.code == 69);
    CHECK(contains(outcome.err, "this build cannot read JPEG files"));
    CHECK(contains(outcome.err, "hint: apt-get install libturbojpeg0-dev"));
    return;
  }
  const Outcome trained = train({"run.folder=out", "data.image.short_side=10"});
  INFO(trained.err);
  REQUIRE(trained.code == 0);
  CHECK(tiny.end_of("out")["eval_accuracy"] == 1.0);
  CHECK(content(tiny.path() / "out/class_to_idx.json") == "{\n  \"blue\": 0,\n  \"red\": 1\n}\n");

  // A file that turns out bad in the middle of a run.
  write_text(tiny.path() / "images/train/red/9.jpg",
             content(kGolden / "images/red.jpg").substr(0, 400));
  const Outcome bad = train({"run.folder=bad"});
  CHECK(bad.code == 65);
  CHECK(contains(bad.err, "images/train/red/9.jpg: "));

  const Outcome padded = train({"data.crop_padding=2"});
  CHECK(padded.code == 78);
  CHECK(contains(padded.err, "data.crop_padding needs images of one size"));
  const Outcome sizeless = train({"model.pretrained="});
  CHECK(sizeless.code == 78);
  CHECK(contains(sizeless.err, "data.image.size is missing: image files differ in size"));
}
