#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/files.h"
#include "models/hf_config.h"
#include "tests/core/temporary_folder.h"
#include "tests/support/check_error.h"
#include "tests/support/check_sampling.h"
#include "tests/support/check_slope.h"

using namespace vcas;

namespace {

constexpr std::int64_t kWords = 11;

ModelOptions tiny_gpt(double dropout = 0, const std::string& activation = "gelu") {
  return read_model_options({"type=gpt", "width=8", "depth=2", "heads=2", "ffn_ratio=2",
                             "max_positions=8", fmt::format("vocabulary={}", kWords),
                             "activation=" + activation, fmt::format("dropout={}", dropout),
                             fmt::format("attention_dropout={}", dropout)});
}

// Every row predicts a word.
Batch all_rows(Batch batch) {
  const std::size_t rows = batch.tokens.size();
  batch.masked_offsets = batch.offsets;
  batch.masked_rows.clear();
  batch.masked_labels.clear();
  for (std::size_t row = 0; row < rows; ++row) {
    batch.masked_rows.push_back(static_cast<std::int32_t>(row));
    batch.masked_labels.push_back(batch.tokens[(row + 1) % rows]);
  }
  return batch;
}

// Logits of these items, without dropout.
std::vector<float> logits_of(ModelFixture& f, const Batch& batch, std::int64_t first,
                             std::int64_t items) {
  f.model->load(*f.ops, batch, first, items);
  Exec exec = f.model->graph.make_exec(1, 0, false);
  f.model->graph.forward(exec);
  const Tensor logits = f.model->graph.tensor(f.model->logits);
  return {logits.ptr<float>(), logits.ptr<float>() + logits.elements()};
}

}  // namespace

TEST_CASE("the gradient of a GPT is the slope of its loss", "[model][gpt]") {
  const std::string activation = GENERATE("gelu", "gelu_tanh");
  const double dropout = GENERATE(0.0, 0.2);
  ModelFixture f(tiny_gpt(dropout, activation), {}, 1, 5, DType::kF64);
  f.model->load(*f.ops, all_rows(random_text(5, kWords, 1)), 0, 5);
  enlarge_weights(f.model->graph.parameters(), 20);
  check_slope(f, 1e-7);
}

TEST_CASE("a later word changes no bit of the logits before it", "[model][gpt]") {
  ModelFixture f(tiny_gpt(), {}, 1, 8);
  enlarge_weights(f.model->graph.parameters(), 20);
  const Batch batch = all_rows(random_text(8, kWords, 1));  // items of 5, 1, 7, 3, 5, ... words
  const std::vector<float> before = logits_of(f, batch, 0, 8);
  for (std::size_t item = 0; item < 8; ++item)
    for (std::int64_t row = batch.offsets[item]; row < batch.offsets[item + 1]; ++row) {
      INFO("item " << item << ", row " << row);
      Batch changed = batch;
      auto& token = changed.tokens[static_cast<std::size_t>(row)];
      token = (token + 1) % kWords;
      const std::vector<float> after = logits_of(f, changed, 0, 8);
      for (std::int64_t other = 0; other < batch.offsets.back(); ++other) {
        const bool depends = other >= row && other < batch.offsets[item + 1];
        const auto at = other * kWords;
        CHECK(std::equal(before.begin() + at, before.begin() + at + kWords, after.begin() + at) !=
              depends);
      }
    }
}

TEST_CASE("the logits of a text are those it has alone", "[model][gpt]") {
  ModelFixture f(tiny_gpt(), {}, 1, 8);
  enlarge_weights(f.model->graph.parameters(), 20);
  const Batch batch = all_rows(random_text(8, kWords, 1));
  const std::vector<float> together = logits_of(f, batch, 0, 8);
  std::vector<float> alone;
  for (std::int64_t n = 0; n < 8; ++n) {
    const std::vector<float> logits = logits_of(f, batch, n, 1);
    alone.insert(alone.end(), logits.begin(), logits.end());
  }
  REQUIRE(alone.size() == together.size());
  for (std::size_t i = 0; i < alone.size(); ++i) CHECK(std::abs(alone[i] - together[i]) <= 1e-5);
}

TEST_CASE("the mean of many sampled gradients of a GPT is the exact one", "[model][gpt][law]") {
  ModelFixture f(tiny_gpt(), {}, 1, 8, DType::kF64);
  f.model->load(*f.ops, all_rows(random_text(8, kWords, 1)), 0, 8);
  enlarge_weights(f.model->graph.parameters(), 20);
  check_mean(f, "transformer.h.");
}

TEST_CASE("ratios of one give the exact gradient of a GPT bit for bit", "[model][gpt][law]") {
  ModelFixture f(tiny_gpt(), {}, 1, 8);
  check_ratios_of_one(f);
}

TEST_CASE("the first weights of a GPT have the deviations of GPT-2", "[model][gpt]") {
  ModelFixture f(read_model_options({"type=gpt", "width=64", "depth=3", "heads=2",
                                     "max_positions=64", "vocabulary=100"}),
                 {}, 1, 1);
  std::int64_t branches = 0;
  for (const Parameter& parameter : f.model->graph.parameters().list()) {
    const auto elements = static_cast<double>(parameter.shape.elements());
    double sum = 0, squares = 0;
    for (std::int64_t i = 0; i < parameter.shape.elements(); ++i) {
      const double value = parameter.value.ptr<float>()[i];
      sum += value;
      squares += value * value;
    }
    INFO(parameter.name);
    const bool norm = parameter.name.find("ln_") != std::string::npos;
    if (norm || parameter.name.ends_with(".bias")) {
      CHECK(squares == (parameter.name.ends_with(".bias") ? 0 : elements));
      continue;
    }
    const bool branch = parameter.name.ends_with(".c_proj.weight");
    branches += branch;
    const double want = branch ? 0.02 / std::sqrt(6.0) : 0.02;
    // Five standard errors.
    CHECK(std::abs(std::sqrt(squares / elements) / want - 1) < 5 / std::sqrt(2 * elements));
    CHECK(std::abs(sum / elements) < 5 * want / std::sqrt(elements));
  }
  CHECK(branches == 6);
}

TEST_CASE("text that does not fit a GPT is refused", "[model][gpt]") {
  ModelFixture f(tiny_gpt(), {}, 1, 4);
  const Batch good = random_text(4, kWords, 1);
  const std::string other_tokenizer = "the tokenizer does not belong to the model";
  for (const std::int32_t token : {11, -1}) {
    Batch batch = good;
    batch.tokens[2] = token;
    check_error([&] { f.model->load(*f.ops, batch, 0, 4); }, ExitCode::kBadData,
                fmt::format("token {}, and the model knows 11", token), other_tokenizer);
  }
  Batch other_words = good;
  other_words.masked_labels[1] = 11;
  check_error([&] { f.model->load(*f.ops, other_words, 0, 4); }, ExitCode::kBadData,
              "label 11, and the model knows 11", other_tokenizer);
  Batch longer = good;
  longer.tokens.insert(longer.tokens.end(), 9, 1);
  longer.offsets.back() += 9;
  check_error([&] { f.model->load(*f.ops, longer, 0, 4); }, ExitCode::kBadData,
              "an item of 12 tokens, and the model has 8 positions",
              "data.text.max_length cuts items off");
  ModelOptions options = tiny_gpt();
  options.kind->set_vocabulary(0);
  check_error([&] { build_model(options, {}, 1, 0.0); }, ExitCode::kBadConfig,
              "model.type \"gpt\" needs text, and the data holds none",
              "set model.type to \"vit\" or \"mlp\"");
}

TEST_CASE("a config.json of GPT-2 that is of another model is refused", "[model][gpt]") {
  TemporaryFolder folder;
  const auto file = folder.path() / "config.json";
  const std::string golden = read_file(VCAS_SOURCE_DIR "/tests/golden/hf/gpt2/config.json");
  const auto check = [&](const char* key, const nlohmann::json& value, const std::string& text) {
    nlohmann::json config = nlohmann::json::parse(golden);
    config[key] = value;
    atomic_write(file, config.dump());
    check_error(
        [&] { read_hf_config(file); }, ExitCode::kBadConfig,
        fmt::format("{}: \"{}\" is {}, and only {}", file.string(), key, value.dump(), text));
  };
  check("scale_attn_weights", false, "true is supported");
  check("scale_attn_by_inverse_layer_idx", true, "false is supported");
  check("reorder_and_upcast_attn", true, "false is supported");
  check("add_cross_attention", true, "false is supported");
  check("tie_word_embeddings", false, "true is supported");
  check("activation_function", "relu", "gelu, gelu_new and gelu_pytorch_tanh are supported");
}

TEST_CASE("a config.json of GPT-2 with two dropouts is refused", "[model][gpt]") {
  TemporaryFolder folder;
  const auto file = folder.path() / "config.json";
  nlohmann::json config =
      nlohmann::json::parse(read_file(VCAS_SOURCE_DIR "/tests/golden/hf/gpt2/config.json"));
  config["resid_pdrop"] = 0.2;
  const auto check = [&](const char* embedding) {
    atomic_write(file, config.dump());
    check_error(
        [&] { read_hf_config(file); }, ExitCode::kBadConfig,
        fmt::format("{}: \"embd_pdrop\" is {} and \"resid_pdrop\" is 0.2, and the model has "
                    "one dropout for both",
                    file.string(), embedding),
        "give both one number there; evaluations have no dropout");
  };
  config["embd_pdrop"] = 0.3;
  check("0.3");
  config.erase("embd_pdrop");
  check("0.1");
}

TEST_CASE("a config.json whose heads do not divide the width is refused", "[model][gpt]") {
  TemporaryFolder folder;
  const auto file = folder.path() / "config.json";
  for (const auto& [model, heads, width] :
       {std::tuple("gpt2", "n_head", "n_embd"),
        std::tuple("bert_mlm", "num_attention_heads", "hidden_size")}) {
    nlohmann::json config = nlohmann::json::parse(
        read_file(fmt::format("{}/tests/golden/hf/{}/config.json", VCAS_SOURCE_DIR, model)));
    config[width] = 32;
    config[heads] = 5;
    atomic_write(file, config.dump());
    check_error([&] { read_hf_config(file); }, ExitCode::kBadData,
                fmt::format("{}: \"{}\" must divide \"{}\" 32, got 5", file.string(), heads, width),
                "correct the file, or take another model");
  }
}

TEST_CASE("what a config.json of GPT-2 does not say is as in transformers", "[model][gpt]") {
  TemporaryFolder folder;
  const auto file = folder.path() / "config.json";
  nlohmann::json config = {{"model_type", "gpt2"}, {"n_embd", 12},      {"n_layer", 2},
                           {"n_head", 3},          {"n_positions", 16}, {"vocab_size", 60}};
  const auto read = [&] {
    atomic_write(file, config.dump());
    return to_json(read_hf_config(file).options);
  };
  const auto absent = read();
  CHECK(absent["type"] == "gpt");
  CHECK(absent["width"] == 12);
  CHECK(absent["depth"] == 2);
  CHECK(absent["heads"] == 3);
  CHECK(absent["max_positions"] == 16);
  CHECK(absent["vocabulary"] == 60);
  CHECK(absent["ffn_ratio"] == 4);
  CHECK(absent["activation"] == "gelu_tanh");
  CHECK(absent["norm_eps"] == 1e-5);
  CHECK(absent["dropout"] == 0.1);
  CHECK(absent["attention_dropout"] == 0.1);
  config["n_inner"] = nullptr;
  CHECK(read() == absent);
  config.update({{"n_inner", 30},
                 {"activation_function", "gelu"},
                 {"layer_norm_epsilon", 1e-3},
                 {"resid_pdrop", 0.2},
                 {"embd_pdrop", 0.2},
                 {"attn_pdrop", 0.3}});
  const auto given = read();
  CHECK(given["ffn_ratio"] == 2.5);
  CHECK(given["activation"] == "gelu");
  CHECK(given["norm_eps"] == 1e-3);
  CHECK(given["dropout"] == 0.2);
  CHECK(given["attention_dropout"] == 0.3);
  config["resid_pdrop"] = 0.1;
  config.erase("embd_pdrop");
  CHECK(read()["dropout"] == 0.1);
}
