// A configuration of every type of setting, for tests.
#pragma once

#include "core/config.h"
#include "tests/support/check_error.h"

namespace vcas {

struct ModelConfig {
  std::string type = "bert";
  int width = 768;
  int heads = 12;

  void fields(Setting& v) {
    v.field("type", type, "Kind of model.", one_of({"bert", "vit", "resnet", "mlp"}));
    v.field("width", width, "Hidden size.", at_least(1));
    v.field("heads", heads, "Attention heads.", at_least(1));
  }

  void validate(ConfigErrors& errors) const {
    if (width % heads != 0)
      errors.add({"heads", "width"}, "must divide model.width " + std::to_string(width) + ", got " +
                                         std::to_string(heads));
  }
};

struct DataConfig {
  std::string path;
  std::vector<std::string> columns = {"premise", "hypothesis"};

  void fields(Setting& v) {
    v.field("path", path, "Folder of the data.");
    v.field("columns", columns, "Text columns.");
  }
};

struct TrainConfig {
  double learning_rate = 1e-3;
  int epochs = 3;
  std::int64_t max_steps = -1;
  std::uint64_t seed = 42;
  bool shuffle = true;
  double dropout = 0.1;
  std::vector<int> sizes;
  std::vector<double> weights;
  std::optional<double> clip_norm = 1.0;
  std::optional<std::string> note;
  DataConfig data;

  void fields(Setting& v) {
    v.field("learning_rate", learning_rate, "Peak learning rate.", above(0.0));
    v.field("epochs", epochs, "Passes over the data.", at_least(1));
    v.field("max_steps", max_steps, "Stop after this many steps; -1: no limit.", at_least(-1));
    v.field("seed", seed, "Seed of all random numbers.");
    v.field("shuffle", shuffle, "New order in each epoch.");
    v.field("dropout", dropout, "Share of zeroed activations.", at_least(0), below(1));
    v.field("sizes", sizes, "Sizes.", between(1, 100));
    v.field("weights", weights, "Weights.", at_least(0.0));
    v.field("clip_norm", clip_norm, "Largest gradient norm; null: no clipping.", above(0));
    v.field("note", note, "Free text.");
    v.section("data", data, "What to train on.");
  }
};

struct RunConfig {
  std::string device = "auto";
  ModelConfig model;
  TrainConfig train;

  void fields(Setting& v) {
    v.field("device", device, "Where to run.", one_of({"auto", "cpu", "cuda"}));
    v.section("model", model, "The model.");
    v.section("train", train, "The training.");
  }
};

inline ConfigSources document(const std::string& text, std::vector<std::string> overrides = {}) {
  return {.documents = {{"run.json", text}}, .overrides = std::move(overrides)};
}

inline ConfigSources set(std::vector<std::string> overrides) {
  return {.overrides = std::move(overrides)};
}

// The text of the error, or "" when the sources are accepted.
inline std::string error_of(const ConfigSources& sources) {
  RunConfig config;
  return error_text([&] { read_config(config, sources); }, ExitCode::kBadConfig);
}

inline const std::string kOneError = "1 error; nothing was run";

}  // namespace vcas
