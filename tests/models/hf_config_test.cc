#include "models/hf_config.h"

#include <fmt/format.h>

#include <clocale>
#include <nlohmann/json.hpp>

#include "core/files.h"
#include "tests/core/temporary_folder.h"
#include "tests/support/catch.h"
#include "tests/support/check_error.h"

namespace fs = std::filesystem;
using namespace vcas;

TEST_CASE("a config.json that is none, or of another model", "[hf_config]") {
  TemporaryFolder folder;
  const fs::path file = folder.path() / "config.json";
  std::string good =
      read_file(fs::path(VCAS_SOURCE_DIR) / "tests/golden/hf/bert_classification/config.json");
  const auto check = [&](const std::string& old, const std::string& now, ExitCode code,
                         const std::string& text) {
    std::string changed = good;
    const std::size_t at = changed.find(old);
    REQUIRE(at != std::string::npos);
    changed.replace(at, old.size(), now);
    atomic_write(file, changed);
    check_error([&] { read_hf_config(file); }, code, text);
  };
  check("\"hidden_size\": 24", "\"hidden_size\": \"x\"", ExitCode::kBadData,
        "\"hidden_size\" has the wrong type: \"x\"");
  check("\"hidden_size\": 24", "\"hidden_size\": 0", ExitCode::kBadData,
        "\"hidden_size\" must be from 1 to 16777216, got 0");
  check("\"hidden_size\": 24", "\"hidden_size\": 4611686018427387904", ExitCode::kBadData,
        "\"hidden_size\" must be from 1 to 16777216, got 4611686018427387904");
  check("\"hidden_size\"", "\"hidden\"", ExitCode::kBadData,
        file.string() + ": lacks \"hidden_size\"");
  check("\"bert\"", "\"roberta\"", ExitCode::kBadConfig,
        "only bert, gpt2, resnet, vit, siglip are supported");
  check("\"gelu\"", "\"relu\"", ExitCode::kBadConfig,
        "\"hidden_act\" is \"relu\", and only \"gelu\" is supported");
  check("\"1\": \"neutral\"", "\"7\": \"neutral\"", ExitCode::kBadData, "3 entries and none for 1");
  check("\"vocab_size\": 60\n}", "\"vocab_size\": 60", ExitCode::kBadData,
        "config.json:39:1: syntax error");
  const fs::path hf = fs::path(VCAS_SOURCE_DIR) / "tests/golden/hf";
  good = read_file(hf / "vit_mean/config.json");
  check("\"vision_config\": {", "\"vision_config\": 7, \"other\": {", ExitCode::kBadData,
        file.string() + ": \"vision_config\" is no object");
  good = read_file(hf / "resnet_basic/config.json");
  check("\"layer_type\": \"basic\"", "\"layer_type\": \"preact\"", ExitCode::kBadConfig,
        file.string() +
            ": \"layer_type\" is \"preact\", and only basic and bottleneck are supported");
  check("\"depths\": [", "\"depths\": [1, ", ExitCode::kBadConfig,
        "and only one number for each of hidden_sizes is supported");
  check("\"depths\": [", "\"depths\": [0, ", ExitCode::kBadData,
        "\"depths\" must be from 1 to 16777216, got 0");
  good = read_file(hf / "vit/config.json");
  check("\"patch_size\": 4", "\"patch_size\": 3", ExitCode::kBadConfig,
        "\"patch_size\" is 3, and only a divisor of \"image_size\" is supported");
  // A run could not read it back from its checkpoints.
  good = read_file(hf / "resnet_bottleneck/config.json");
  check("\"hidden_sizes\": [\n    16", "\"hidden_sizes\": [\n    18", ExitCode::kBadConfig,
        "and of bottlenecks only multiples of 4 are supported");
}

TEST_CASE("numbers of config.json are read as they are, or refused", "[hf_config]") {
  TemporaryFolder folder;
  const auto check = [&](const char* model, const char* name, const char* key,
                         const std::string& value, const auto& read) {
    CAPTURE(model, key, value);
    const fs::path hf = fs::path(VCAS_SOURCE_DIR) / "tests/golden/hf" / model;
    const fs::path file = folder.path() / name;
    nlohmann::json config =
        fs::exists(hf / name)
            ? nlohmann::json::parse(read_file(hf / name))
            : nlohmann::json{{"image_mean", {0.5}}, {"image_std", {0.5}}, {"resample", 2}};
    config[key] = nlohmann::json::parse(value);
    atomic_write(file, config.dump());
    const Error error = error_of(read);
    CHECK(error.code() == ExitCode::kBadData);
    CHECK(std::string(error.what()) ==
          file.string() + ": \"" + key + "\" has the wrong type: " + config[key].dump());
  };
  const auto read_config = [&] { read_hf_config(folder.path() / "config.json"); };
  for (const char* value : {"64.7", "1e300", "true", "18446744073709551615", "\"64\"", "[64]"})
    check("resnet_basic", "config.json", "embedding_size", value, read_config);
  for (const char* value : {"[4294967298]", "[1, 2.5]", "[1e300]", "[false]", "{\"0\": 1}", "1"})
    check("resnet_basic", "config.json", "depths", value, read_config);
  for (const char* value : {"{\"0\": 1}", "[[\"0\", \"cat\"]]"})
    check("resnet_basic", "config.json", "id2label", value, read_config);
  check("bert_mlm", "config.json", "hidden_dropout_prob", "\"0\"", read_config);
  const auto read_processor = [&] { read_hf_image_processor(folder.path()); };
  for (const char* value : {"{\"height\": 8.5, \"width\": 8}", "{\"height\": 8, \"width\": 1e300}"})
    check("vit", "preprocessor_config.json", "size", value, read_processor);
  check("vit", "preprocessor_config.json", "image_mean", "[1e39]", read_processor);
  check("vit", "preprocessor_config.json", "resample", "2.5", read_processor);
}

TEST_CASE("numbers of config.json that a run may not have are refused", "[hf_config]") {
  TemporaryFolder folder;
  const fs::path file = folder.path() / "config.json";
  const auto check = [&](const char* model, const char* key, const nlohmann::json& value,
                         const std::string& text) {
    CAPTURE(model, key);
    nlohmann::json config = nlohmann::json::parse(
        read_file(fs::path(VCAS_SOURCE_DIR) / "tests/golden/hf" / model / "config.json"));
    config[key] = value;
    atomic_write(file, config.dump());
    check_error([&] { read_hf_config(file); }, ExitCode::kBadData, file.string() + ": " + text,
                "correct the file");
  };
  const char* bert = "bert_classification";
  for (const auto& [model, key] : {std::pair{bert, "layer_norm_eps"},
                                   {"vit", "layer_norm_eps"},
                                   {"gpt2", "layer_norm_epsilon"}}) {
    check(model, key, 0, fmt::format("\"{}\" must be above 0, got 0", key));
    check(model, key, -1, fmt::format("\"{}\" must be above 0, got -1", key));
    check(model, key, 1e300, fmt::format("\"{}\" must be at most 1, got 1e+300", key));
  }
  for (const auto& [model, key] : {std::pair{bert, "hidden_dropout_prob"},
                                   {bert, "attention_probs_dropout_prob"},
                                   {bert, "classifier_dropout"},
                                   {"gpt2", "resid_pdrop"},
                                   {"gpt2", "attn_pdrop"}}) {
    check(model, key, 1.0, fmt::format("\"{}\" must be below 1, got 1", key));
    check(model, key, -0.5, fmt::format("\"{}\" must be at least 0, got -0.5", key));
  }
  check(bert, "num_hidden_layers", 20000, "model.depth is 20000 by it, and must be at most 10000");
  check("gpt2", "n_inner", 1 << 24, "model.ffn_ratio is 1048576.0 by it, and must be at most 1000");
}

TEST_CASE("means of images are written with their few digits in any locale", "[hf_config]") {
  std::setlocale(LC_NUMERIC, "de_DE.UTF-8");  // changes nothing where the machine has none
  const std::string text =
      image_processor_text({.mean = {0.485f, 1}, .std = {1e-7f, 0.225f}}, {2, 8, 8});
  std::setlocale(LC_NUMERIC, "C");
  CHECK_THAT(text, ContainsSubstring("\"image_mean\": [\n    0.485,\n    1.0\n  ]"));
  CHECK_THAT(text, ContainsSubstring("\"image_std\": [\n    1e-07,\n    0.225\n  ]"));
}

TEST_CASE("images become RGB in transformers where the model reads colours", "[hf_config]") {
  const auto processor = [](std::vector<std::int64_t> shape, bool squeeze) {
    return nlohmann::json::parse(
        image_processor_text({.mean = {0.5f}, .std = {0.5f}, .squeeze = squeeze}, shape));
  };
  CHECK(processor({1, 8, 8}, false).at("image_processor_type") == "BitImageProcessor");
  CHECK(processor({1, 8, 8}, true).at("image_processor_type") == "ViTImageProcessor");
  for (const bool squeeze : {true, false}) {
    CHECK(processor({3, 8, 8}, squeeze).at("do_convert_rgb") == true);
    CHECK(processor({1, 8, 8}, squeeze).at("do_convert_rgb") == false);
  }
}

TEST_CASE("pretrained sizes replace those of the settings", "[hf_config]") {
  const std::string pretrained =
      "pretrained=" VCAS_SOURCE_DIR "/tests/golden/hf/bert_classification";
  const auto options =
      to_json(hf_options(read_model_options({"type=bert", "head=mlm", pretrained})));
  CHECK(options["width"] == 24);
  CHECK(options["depth"] == 3);
  CHECK(options["ffn_ratio"] == 52.0 / 24);
  CHECK(options["head"] == "mlm");
  CHECK(options["vocabulary"] == 60);
  const ModelOptions vit = read_model_options({"type=vit", pretrained});
  check_error([&] { hf_options(vit); }, ExitCode::kBadConfig, "model.type is \"vit\", but ",
              "set model.type to \"bert\"");
}

TEST_CASE("a ViT of Hugging Face says what its classifier reads", "[hf_config]") {
  for (const std::string name : {"vit", "vit_mean"}) {
    const ModelOptions asked =
        read_model_options({"type=vit", "pretrained=" VCAS_SOURCE_DIR "/tests/golden/hf/" + name});
    CHECK(to_json(hf_options(asked))["pooling"] == (name == "vit" ? "first" : "mean"));
  }
  TemporaryFolder folder;
  const fs::path vit = fs::path(VCAS_SOURCE_DIR) / "tests/golden/hf/vit";
  nlohmann::json of_numbers = nlohmann::json::parse(read_file(vit / "config.json"));
  of_numbers["problem_type"] = "regression";
  fs::copy(vit / "model.safetensors", folder.path() / "model.safetensors");
  atomic_write(folder.path() / "config.json", of_numbers.dump());
  const Error refused = error_of([&] {
    hf_options(read_model_options({"type=vit", "pretrained=" + folder.path().string()}));
  });
  CHECK_THAT(std::string(refused.what()), ContainsSubstring("\"problem_type\" is \"regression\""));
  CHECK(refused.hint() == "model.new_classifier=true starts a new classifier over its blocks");
  const auto check = [&](const char* key, const nlohmann::json& value, const std::string& text) {
    nlohmann::json config =
        nlohmann::json::parse(read_file(VCAS_SOURCE_DIR "/tests/golden/hf/vit_mean/config.json"));
    if (value.is_null())
      config["vision_config"].erase(key);
    else
      config["vision_config"][key] = value;
    atomic_write(folder.path() / "config.json", config.dump());
    check_error([&] { read_hf_config(folder.path() / "config.json"); }, ExitCode::kBadConfig, text);
  };
  check("vision_use_head", true, "\"vision_use_head\" is true, and only false is supported");
  check("hidden_act", "gelu_pytorch_tanh", "only \"gelu\" is supported");
  // What transformers takes where the file does not say.
  check("vision_use_head", {}, "\"vision_use_head\" is true, and only false is supported");
  check("hidden_act", {},
        "\"hidden_act\" is \"gelu_pytorch_tanh\", and only \"gelu\" is supported");
}
