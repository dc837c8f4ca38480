#include "tests/support/catch.h"
#include "tests/tools/tiny_images.h"

namespace fs = std::filesystem;

namespace {

const fs::path kGolden = fs::path(VCAS_SOURCE_DIR) / "tests/golden";

bool reads_jpeg(const fs::path& folder) {
  return contains(run(folder, {"--version"}).out, "JPEG: yes");
}

}  // namespace

TEST_CASE("a pretrained ViT is fine-tuned on resized CIFAR, exported and loaded again", "[image]") {
  const TinyImages tiny;
  const Outcome trained = succeeded(tiny.train({"run.folder=out"}));
  const nlohmann::json end = tiny.end_of("out");
  CHECK(end["eval_accuracy"] == 1.0);
  const auto eval_loss = [&](const std::string& setting) {
    return tiny.eval("out/last", {"--set", setting})["eval_loss"];
  };
  CHECK(eval_loss("seed=0") == end["eval_loss"]);
  // Each setting of the images counts, and those of the pretrained folder are the default.
  CHECK(eval_loss("data.image.mean=[0.5,0.4,0.3]") == end["eval_loss"]);
  CHECK(eval_loss("data.image.mean=[0.5,0.4,0.2]") != end["eval_loss"]);
  CHECK(eval_loss("data.image.std=[0.5,0.25,0.1]") != end["eval_loss"]);
  CHECK(eval_loss("data.image.short_side=12") != end["eval_loss"]);
  CHECK(eval_loss("data.image.interpolation=bilinear") == end["eval_loss"]);
  CHECK(eval_loss("data.image.interpolation=bicubic") != end["eval_loss"]);
  check_message(run(tiny.path(), {"eval", "--model", "out/last", "--set", "data.image.size=16"}),
                78,
                "error: data.image.size is 16, but the trained model reads images of 8 x 8\n"
                "  hint: leave data.image.size out\n");

  fs::create_directories(tiny.path() / "moved");
  fs::rename(tiny.path() / "vit", tiny.path() / "moved/vit");  // a checkpoint needs it no more
  CHECK(eval_loss("seed=0") == end["eval_loss"]);
  fs::rename(tiny.path() / "moved/vit", tiny.path() / "vit");
  check_failure(run(tiny.path(), {"eval", "--model", "out/last", "--set", "data.type=synthetic",
                                  "--set", "data.synthetic.shape=[1,8,8]", "--set",
                                  "data.image.mean=[0.5]", "--set", "data.image.std=[0.5]"}),
                65,
                {"the test data have items of 1 x 8 x 8, and those of training are "
                 "3 x 8 x 8"});

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

  succeeded(run(tiny.path(), {"export", "--model", "out/last", "--to", "hf"}));
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
                       {"image_std", {0.5, 0.25, 0.2}},
                       {"do_convert_rgb", true}});
  const Outcome again =
      succeeded(tiny.train({"run.folder=again", "model.pretrained=hf", "model.new_classifier=false",
                            "train.steps=1", "schedule.learning_rate=1e-30"}));
  CHECK(tiny.end_of("again")["eval_loss"] == end["eval_loss"]);
}

TEST_CASE("settings of images that do not fit are refused before training", "[image]") {
  const TinyImages tiny;
  const auto check = [&](const std::string& setting, int code, const std::string& text) {
    CAPTURE(setting);
    check_failure(tiny.train({"--validate", setting}), code, {text});
  };
  check("data.image.size=16", 78,
        "data.image.size is 16, but the model of vit/config.json reads images of 8 x 8");
  check("data.image.short_side=7", 78,
        "data.image.short_side is 7, and data.image.size, which is cut out of it, is 8");
  check("data.image.mean=[0.5]", 78, "mean has 1 values and std has 3, but the images have 3");
  check("data.image.mean=[0.5]", 78, "hint: give data.image.mean and data.image.std one value a ");
  check("data.image.crop_scale=[1]", 78, "data.image.crop_scale must be [low, high], or empty");
  check("data.image.crop_ratio=[2,1]", 78, "data.image.crop_ratio must be [low, high]");
  tiny.write_processor({{"resample", 1}});
  check("seed=1", 78,
        "vit/preprocessor_config.json: \"resample\" is 1, and only 2 (bilinear) and 3 (bicubic)");
  tiny.write_processor({{"rescale_factor", 0.5}});
  check("seed=1", 78, "\"rescale_factor\" is 0.5, and only 1/255 is supported");
  tiny.write_processor({{"do_normalize", false}});
  check("seed=1", 78, "\"do_normalize\" is false, and only true is supported");
  tiny.write_processor({{"do_resize", false}});
  check("seed=1", 78, "\"do_resize\" is false, and only true is supported");
  tiny.write_processor({{"do_pad", true}});
  check("seed=1", 78, "\"do_pad\" is true, and only false is supported");
  tiny.write_processor({{"crop_pct", 0.875}});
  check("seed=1", 78, "\"crop_pct\" is 0.875, and only null is supported");
  tiny.write_processor({{"size", {{"height", 16}, {"width", 16}}}});
  check("seed=1", 78,
        "vit/preprocessor_config.json makes images of 16 x 16, but the model of vit/config.json "
        "reads 8 x 8");
  tiny.write_processor({{"size", {{"shortest_edge", 8}}}});
  check(
      "seed=1", 78,
      "\"size\" is {\"shortest_edge\":8}, and without do_center_crop only a height and a width are "
      "supported");
  tiny.write_processor(
      {{"size", {{"longest_edge", 8}}}, {"do_center_crop", true}, {"crop_size", 8}});
  check("seed=1", 78,
        "\"size\" is {\"longest_edge\":8}, and only a square or a shortest_edge is supported");
  tiny.write_processor({{"size", 8}, {"image_processor_type", "CLIPImageProcessor"}});
  check("seed=1", 78, "\"size\" is 8, and of CLIP only ");
  tiny.write_processor({{"do_center_crop", true}});
  check("seed=1", 78,
        "\"do_center_crop\" is true, and only a crop_size with a height and a width is");
  tiny.write_processor({{"feature_extractor_type", "LevitFeatureExtractor"}});
  check("seed=1", 78,
        "\"feature_extractor_type\" is \"LevitFeatureExtractor\", and only those of Beit, Bit, "
        "CLIP, ConvNext, DeiT, Siglip, ViT are supported");
  nlohmann::json convnext = {{"image_processor_type", "ConvNextImageProcessor"}, {"size", nullptr}};
  tiny.write_processor(convnext);
  check("seed=1", 65, "vit/preprocessor_config.json: lacks \"size\"");
  tiny.write_processor({{"size", nullptr}});
  check("seed=1", 65, "vit/preprocessor_config.json: lacks \"size\"");
  nlohmann::json square = convnext;
  square["size"] = {{"height", 8}, {"width", 8}};
  tiny.write_processor(square);
  check("seed=1", 78, "and only a number or a shortest_edge is supported");
  square["size"] = 8;
  square["crop_pct"] = 1e-30;
  tiny.write_processor(square);
  check("seed=1", 78, "\"crop_pct\" is 1e-30, and only a share from 0.01 to 1 is supported");
  square["do_center_crop"] = true;
  tiny.write_processor(square);
  check("seed=1", 78, "\"do_center_crop\" is true, and of ConvNext only false is supported");
  write_text(tiny.path() / "vit/preprocessor_config.json",
             R"({"image_mean": [0.5], "image_std": [0.5]})");
  check("seed=1", 65, "vit/preprocessor_config.json: lacks \"resample\"");
  tiny.write_processor({{"size", 8}, {"do_convert_rgb", true}});
  succeeded(tiny.train({"--validate"}));
  fs::remove(tiny.path() / "vit/preprocessor_config.json");
  succeeded(tiny.train({"--validate"}));
}

TEST_CASE("images are cut or squeezed as those of the pretrained weights", "[image]") {
  const TinyImages tiny;
  if (!reads_jpeg(tiny.path())) return;
  for (const char* part : {"images/train/a", "images/train/b", "images/val/a"}) {
    fs::create_directories(tiny.path() / part);
    for (int copy = 0; copy < 8; ++copy)
      fs::copy_file(kGolden / "images/colours.jpg",
                    tiny.path() / part / (std::to_string(copy) + ".jpg"));
  }
  int runs = 0;
  const auto train = [&](const nlohmann::json& processor, std::vector<std::string> settings = {}) {
    tiny.write_processor(processor);
    const std::string folder = "out" + std::to_string(++runs);
    settings.insert(settings.end(), {"data.type=image_folder", "data.folder=images",
                                     "train.steps=1", "run.folder=" + folder});
    succeeded(tiny.train(settings));
    const nlohmann::json loss = tiny.end_of(folder)["eval_loss"];
    CHECK(tiny.eval(folder + "/last")["eval_loss"] == loss);
    return loss;
  };
  const nlohmann::json square = {{"height", 8}, {"width", 8}};
  const nlohmann::json squeezed = train({{"size", square}});
  const nlohmann::json cut = train({{"size", square}}, {"data.image.fit=crop"});
  const nlohmann::json edge =
      train({{"size", {{"shortest_edge", 12}}}, {"do_center_crop", true}, {"crop_size", square}});
  CHECK(squeezed != cut);
  CHECK(train(nlohmann::json::object()) == squeezed);
  CHECK(edge != cut);
  CHECK(train(nlohmann::json::object(), {"data.image.short_side=12"}) == edge);
  CHECK(train({{"size", square}}, {"data.image.short_side=12"}) == edge);

  CHECK(train({{"image_processor_type", "ConvNextImageProcessorFast"},
               {"size", {{"shortest_edge", 8}}},
               {"crop_pct", 0.65}}) == edge);  // int(8 / .65) is 12
  CHECK(train({{"feature_extractor_type", "ConvNextFeatureExtractor"}, {"size", 8}}) ==
        train(nlohmann::json::object(), {"data.image.short_side=9"}));

  const auto exported = [&](const std::string& folder) {
    REQUIRE(
        run(tiny.path(), {"export", "--model", folder + "/last", "--to", "hf-" + folder}).code ==
        0);
    return tiny.json("hf-" + folder + "/preprocessor_config.json");
  };
  const nlohmann::json squeezing = exported("out1");
  CHECK(squeezing["image_processor_type"] == "ViTImageProcessor");
  CHECK(squeezing["size"] == square);
  const nlohmann::json cutting = exported("out3");
  CHECK(cutting["image_processor_type"] == "BitImageProcessor");
  CHECK(cutting["size"] == nlohmann::json{{"shortest_edge", 12}});
  CHECK(cutting["do_center_crop"] == true);
  CHECK(cutting["crop_size"] == square);
  CHECK(exported("out2")["size"] == nlohmann::json{{"shortest_edge", 8}});
}

TEST_CASE("recipes with pretrained weights say what is missing", "[image]") {
  const TinyImages tiny;
  const auto validate = [&](const std::string& name, std::vector<std::string> settings) {
    settings.insert(settings.begin(),
                    {"train", "--config",
                     std::string(VCAS_SOURCE_DIR) + "/configs/" + name + ".json", "--validate"});
    return run(tiny.path(), settings);
  };
  check_failure(validate("vit_base_cifar10", {}), 66,
                {"vit-base-patch16-224-in21k: no such file or folder",
                 "hint: model.pretrained is a run, or a folder with config.json, "
                 "model.safetensors and, of texts, vocab.txt, of images, "
                 "preprocessor_config.json"});
  check_failure(validate("vit_base_cifar10", {"model.pretrained=vit"}), 66,
                {"data/cifar-10-batches-bin: none of data_batch_1.bin",
                 "hint: unpack cifar-10-binary.tar.gz"});
  check_failure(validate("vit_base_cifar100", {"model.pretrained=vit"}), 66,
                {"data/cifar-100-binary/train.bin: no such file"});
  const Outcome folder = validate("vit_base_imagenet", {"model.pretrained=vit"});
  check_failure(folder, 66,
                {"data/imagenet/train: no such folder",
                 "hint: data.folder holds a folder for each class, as in "
                 "data/imagenet/train/cat/1.jpg and data/imagenet/val/cat/2.jpg; "
                 "data.validation_share=0.1 does without val"});

  const Outcome ready =
      succeeded(validate("vit_base_cifar10", {"model.pretrained=vit", "data.folder=cifar",
                                              "model.new_classifier=true"}));
  CHECK(contains(ready.out, "data 64 train, 16 test, 10 classes"));
}

TEST_CASE("a folder of JPEG files trains, and its classes are written down", "[image]") {
  const TinyImages tiny;
  const std::vector<std::string> folder = {"data.type=image_folder", "data.folder=images"};
  const auto train = [&](const std::vector<std::string>& settings) {
    return tiny.train(with(settings, folder));
  };
  for (const char* colour : {"red", "blue"})
    for (const char* split : {"train", "val"}) {
      fs::create_directories(tiny.path() / "images" / split / colour);
      for (int copy = 0; copy < 8; ++copy)
        fs::copy_file(kGolden / "images" / (std::string(colour) + ".jpg"),
                      tiny.path() / "images" / split / colour / (std::to_string(copy) + ".jpg"));
    }
  if (!reads_jpeg(tiny.path())) {
    check_failure(train({"run.folder=out"}), 69,
                  {"this build cannot read JPEG files", "hint: apt-get install libjpeg-dev"});
    return;
  }
  succeeded(train({"run.folder=out", "data.image.short_side=10"}));
  CHECK(tiny.end_of("out")["eval_accuracy"] == 1.0);
  CHECK(content(tiny.path() / "out/class_to_idx.json") == "{\n  \"blue\": 0,\n  \"red\": 1\n}\n");

  // A file that turns out bad in the middle of a run.
  write_text(tiny.path() / "images/train/red/9.jpg",
             content(kGolden / "images/red.jpg").substr(0, 400));
  const Outcome bad = train({"run.folder=bad"});
  check_failure(bad, 65, {"images/train/red/9.jpg: ", "data.skip_bad_rows=true leaves it out"});
  check_failure(train({"--validate", "run.folder=new"}), 65,
                {"error: 1 of 17 images are bad\n  images/train/red/9.jpg: "});
  // Other mistakes are told before images are decoded.
  for (const char* mode : {"--validate", "data.skip_bad_rows=true"}) {
    const Outcome early = train({mode, "run.folder=new", "train.batch_size=18"});
    check_failure(early, 78, {"error: a batch of 18 cannot be filled from 17 items"});
    CHECK_FALSE(contains(early.err, "9.jpg"));
  }
  const Outcome skipped = succeeded(train({"run.folder=skipped", "data.skip_bad_rows=true"}));
  CHECK(contains(skipped.err, "train 16 · test 16"));
  const std::vector<std::string> notes = noted_warnings(tiny.path() / "skipped/metrics.jsonl");
  REQUIRE(notes.size() >= 1);  // that no time is saved depends on the machine
  CHECK(notes[0].starts_with("bad images left out: 1, the first: images/train/red/9.jpg: "));
  CHECK(contains(skipped.err, "\nwarning: " + notes[0] + "\n"));
  CHECK(skipped.err.find("9.jpg") == skipped.err.rfind("9.jpg"));
  const Outcome valid =
      succeeded(train({"--validate", "run.folder=new", "data.skip_bad_rows=true"}));
  CHECK(contains(valid.out, "images decoded: 33\n"));
  CHECK(valid.err == "warning: " + notes[0] + "\n");

  // Other names of the folder to evaluate on.
  fs::remove(tiny.path() / "images/train/red/9.jpg");
  fs::rename(tiny.path() / "images/val", tiny.path() / "images/test");
  fs::create_directories(tiny.path() / "images/valid");  // empty
  CHECK(contains(train({"--validate", "run.folder=new"}).out, "data 16 train, 16 test"));
  fs::create_directories(tiny.path() / "images/valid/red");
  fs::copy_file(kGolden / "images/red.jpg", tiny.path() / "images/valid/red/1.jpg");
  const Outcome both = train({"--validate", "run.folder=new"});
  check_contains(both.out, {"data 16 train, 1 test",
                            "note   images/valid is evaluated on, and images/test is not: "
                            "data.image.eval_folder decides"});
  const Outcome chosen = train({"--validate", "run.folder=new", "data.image.eval_folder=test"});
  CHECK(contains(chosen.out, "data 16 train, 16 test"));
  CHECK_FALSE(contains(chosen.out, "note"));

  check_failure(train({"data.crop_padding=2"}), 78, {"data.crop_padding needs images of one size"});
  check_failure(train({"model.pretrained="}), 78,
                {"data.image.size is missing: image files differ in size"});
}

TEST_CASE("a damaged image loses no step that was trained before it is read", "[image]") {
  const TinyImages tiny;
  if (!reads_jpeg(tiny.path())) return;
  for (const char* part : {"train/a", "train/b", "val/a"}) {
    fs::create_directories(tiny.path() / "images" / part);
    for (int copy = 0; copy < 8; ++copy)
      fs::copy_file(kGolden / "images/colours.jpg",
                    tiny.path() / "images" / part / (std::to_string(copy) + ".jpg"));
  }
  const fs::path damaged = tiny.path() / "images/val/a/3.jpg";
  const std::string whole = content(damaged);
  write_text(damaged, whole.substr(0, whole.size() / 2));
  const auto train = [&](const std::vector<std::string>& settings) {
    return tiny.train(with(settings, {"data.type=image_folder", "data.folder=images",
                                      "train.steps=5", "run.folder=out"}));
  };
  check_failure(train({}), 65,
                {"images/val/a/3.jpg: ", "\n  saved out/checkpoint-5\n",
                 "; --resume goes on then, with --resume-mode=fork where files differ"});
  CHECK(saved_steps(tiny.path() / "out") == std::vector<std::int64_t>{5});
  write_text(damaged, whole);
  const Outcome changed = train({"--resume"});
  CHECK(changed.code == 78);
  succeeded(tiny.train({"--resume", "out", "--resume-mode=fork", "run.folder=fork",
                        "data.type=image_folder", "data.folder=images", "train.steps=5"}));
  CHECK(tiny.end_of("fork")["step"] == 5);
}

TEST_CASE("a run does not go on with images that become other values", "[image]") {
  const TinyImages tiny;
  succeeded(tiny.train({"run.folder=out", "train.eval_every=30"}));
  forget_after(tiny.path() / "out", 30);
  const auto resume = [&] {
    return tiny.train({"run.folder=out", "train.eval_every=30", "--resume"});
  };
  const nlohmann::json processor = tiny.json("vit/preprocessor_config.json");
  const auto check = [&](const char* key, const nlohmann::json& value, const std::string& text) {
    nlohmann::json changed = processor;
    changed[key] = value;
    tiny.write_processor(changed);
    const Outcome refused = resume();
    CAPTURE(key);
    check_message(
        refused, 78,
        "error: " + text +
            " since out/checkpoint-30 was saved; this run would not be an exact continuation\n"
            "  hint: bring the files back, or add --resume-mode=fork to start a new run from "
            "these weights and this optimizer state\n");
    CHECK(saved_steps(tiny.path() / "out") == std::vector<std::int64_t>{30});
  };
  check("image_std", {0.5, 0.25, 0.1},
        "image_std has changed from [0.5,0.25,0.2] to [0.5,0.25,0.1]");
  check("resample", 3, "resample has changed from 2 to 3");
  tiny.write_processor(processor);
  succeeded(resume());
}

TEST_CASE("labels of images are predicted, with their files", "[image]") {
  const TinyImages tiny;
  if (!reads_jpeg(tiny.path())) return;
  for (const char* colour : {"red", "blue"}) {
    fs::create_directories(tiny.path() / "images/train" / colour);
    for (int copy = 0; copy < 8; ++copy)
      fs::copy_file(kGolden / "images" / (std::string(colour) + ".jpg"),
                    tiny.path() / "images/train" / colour / (std::to_string(copy) + ".jpg"));
  }
  succeeded(tiny.train({"run.folder=out", "data.type=image_folder", "data.folder=images",
                        "data.validation_share=0.25", "train.batch_size=4"}));
  fs::create_directories(tiny.path() / "new");
  fs::copy_file(kGolden / "images/red.jpg", tiny.path() / "new/a.jpg");
  fs::copy_file(kGolden / "images/blue.jpg", tiny.path() / "new/b.JPEG");
  write_text(tiny.path() / "new/notes.txt", "none");
  const auto predict = [&](const std::vector<std::string>& arguments) {
    return run(tiny.path(), with({"predict", "--model", "out/best"}, arguments));
  };
  const Outcome folder = succeeded(predict({"--input", "new"}));
  CHECK(folder.out == "file\tprediction\nnew/a.jpg\tred\nnew/b.JPEG\tblue\n");
  CHECK(predict({"--input", "new/b.JPEG", "new/a.jpg", "threads=1"}).out ==
        "file\tprediction\nnew/b.JPEG\tblue\nnew/a.jpg\tred\n");

  const std::string table = predict({"--input=new/a.jpg", "--probabilities"}).out;
  CHECK(table.starts_with("file\tprediction\tblue\tred\nnew/a.jpg\tred\t"));
  double blue = 0, red = 0;
  REQUIRE(std::sscanf(table.c_str() + table.rfind("red\t"), "red\t%lf\t%lf", &blue, &red) == 2);
  CHECK(std::abs(blue + red - 1) < 2e-6);
  CHECK(red > blue);

  fs::copy_file(kGolden / "images/red.jpg", tiny.path() / "a\tb\nc\rd\\n.jpg");
  CHECK(predict({"--input", "a\tb\nc\rd\\n.jpg"}).out ==
        "file\tprediction\na\\tb\\nc\\rd\\\\n.jpg\tred\n");

  write_text(tiny.path() / "new/c.png", "no picture");
  const Outcome bad = predict({"--input", "new"});
  CHECK(bad.code == 65);
  CHECK(bad.out.empty());
  CHECK(
      contains(bad.err, "error: new/c.png: its 10 bytes do not begin as a JPEG or PNG file does"));
  const Outcome skipped = succeeded(predict({"--input", "new", "data.skip_bad_rows=true"}));
  CHECK(skipped.out == folder.out);
  CHECK(contains(skipped.err, "warning: left out new/c.png: its 10 bytes"));
  CHECK(predict({"--input", "new/c.png", "data.skip_bad_rows=true"}).code == 65);
  check_failure(predict({"--input", "none.jpg"}), 66, {"none.jpg: no such file or folder"});
  fs::create_directories(tiny.path() / "empty");
  check_message(predict({"--input", "empty"}), 66,
                "error: empty: no images in it\n"
                "  hint: images are files whose name ends in .jpg, .jpeg or .png\n");
  check_failure(predict({"--submission", "to"}), 2,
                {"data.type \"image_folder\" has no submissions"});
}

TEST_CASE("labels of cifar files are predicted, with numbers", "[image]") {
  const TinyImages tiny;
  succeeded(tiny.train({"run.folder=colour"}));
  const Outcome colour =
      run(tiny.path(), {"predict", "--model", "colour/best", "--input", "cifar/test_batch.bin"});
  CHECK(colour.out.starts_with("index\tprediction\n0\t2\n1\t5\n2\t2\n"));
}

TEST_CASE("a share of the training data stays what it was, with all of its files", "[image]") {
  const TinyImages tiny;
  const fs::path second = tiny.path() / "cifar/data_batch_2.bin";
  write_text(second, TinyImages::records(32));
  const std::vector<std::string> share = {"data.validation_share=0.25", "train.steps=10",
                                          "train.eval_every=10"};
  const auto train = [&](const std::vector<std::string>& settings) {
    return tiny.train(with(settings, share));
  };
  succeeded(train({"run.folder=out"}));
  const auto refused = [&](const std::string& text) {
    check_failure(train({"--resume", "out", "--resume-mode=fork", "--validate"}), 78, {text});
    const Outcome eval = run(tiny.path(), {"eval", "--model", "out"});
    CHECK(eval.code != 0);
    CHECK(contains(eval.err, text));
  };
  write_text(tiny.path() / "cifar/data_batch_3.bin", TinyImages::records(16));
  refused(
      "cifar/data_batch_3.bin is not what out/checkpoint-10 was trained with: items that were "
      "trained on could be evaluated on\n");
  fs::remove(tiny.path() / "cifar/data_batch_3.bin");
  fs::rename(second, tiny.path() / "away");
  const std::string others =
      "the files are not those that out/checkpoint-10 was trained with, all and in their order: "
      "items that were trained on could be evaluated on\n";
  refused(others);
  const fs::path first = tiny.path() / "cifar/data_batch_1.bin", third = tiny.path() / "third";
  fs::rename(first, second);
  fs::rename(tiny.path() / "away", first);
  refused(others);
  fs::rename(second, third);
  fs::rename(first, second);
  fs::rename(third, first);
  succeeded(run(tiny.path(), {"eval", "--model", "out"}));
}

TEST_CASE("classes of images are not those of other rows", "[image]") {
  const TinyImages tiny;
  const auto names = [&](const std::string& second, const std::string& fifth) {
    write_text(tiny.path() / "cifar/batches.meta.txt",
               "a\nb\n" + second + "\nd\ne\n" + fifth + "\ng\nh\ni\nj\n");
  };
  names("bird", "dog");
  succeeded(tiny.train({"run.folder=out", "train.steps=10"}));
  const auto fork = [&] {
    return tiny.train({"--resume", "out", "--resume-mode=fork", "--validate", "train.steps=20"});
  };
  succeeded(fork());
  names("dog", "hound");  // the dog's row would become the hound's
  check_failure(fork(), 78, {"a, b, dog, d, e, hound, g, h, i, j: the names differ\n"});
  const auto warned = [&] {
    const Outcome outcome = succeeded(fork());
    return contains(outcome.err, "; they are taken in the same order\n");
  };
  names("DOG", "hound");  // whatever the case
  CHECK(fork().code == 78);
  names("bird", "hound");
  CHECK(warned());
  fs::remove(tiny.path() / "cifar/batches.meta.txt");  // names are numbers then
  CHECK(warned());
}
