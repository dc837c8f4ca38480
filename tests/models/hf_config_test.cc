#include "models/hf_config.h"

#include <fmt/format.h>

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
  check("\"vocab_size\": 60\n}", "\"vocab_size\": 60", ExitCode::kBadData, "config.json: ");
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
