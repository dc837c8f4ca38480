// How configurations are printed, compared and explained.
#include <cmath>

#include "tests/core/config_fixture.h"

using namespace vcas;

TEST_CASE("a printed config reads back exactly", "[config]") {
  RunConfig config;
  const ConfigOrigins origins = read_config(
      config, document(R"({"train": {"learning_rate": 0.1, "weights": [1e-320, 5e-324, 3],
                                     "seed": 18446744073709551615, "note": "\"\\\n\u0001/*é*/",
                                     "max_steps": 9223372036854775807}})",
                       {"train.clip_norm=0.30000000000000004", "train.dropout=0.1"}));
  for (const PrintMode mode : {PrintMode::kPlain, PrintMode::kOrigins, PrintMode::kMinimal}) {
    const std::string text = print_config(config, origins, mode);
    CAPTURE(text);
    RunConfig again;
    read_config(again, document(text));
    CHECK(config_changes(config, again).empty());
    CHECK(again.train.weights == config.train.weights);
    CHECK(again.train.clip_norm == config.train.clip_norm);
  }
  CHECK(nlohmann::ordered_json::parse(print_config(config, origins, PrintMode::kPlain)) ==
        to_json(config));
}

TEST_CASE("print modes", "[config]") {
  RunConfig config;
  const ConfigOrigins origins =
      read_config(config, document("{\n\"train\": {\"sizes\": [1, 2]},\n\"device\": \"cpu\"}",
                                   {"train.data.path=x", "train.epochs=3"}));
  CHECK(print_config(config, origins, PrintMode::kMinimal) == R"({
  "device": "cpu",
  "train": {
    "sizes": [1,2],
    "data": {
      "path": "x"
    }
  }
}
)");
  CHECK(print_config(config, origins, PrintMode::kOrigins) == R"({
  "device": "cpu",                         // run.json:3
  "model": {
    "type": "bert",                        // default
    "width": 768,                          // default
    "heads": 12                            // default
  },
  "train": {
    "learning_rate": 0.001,                // default
    "epochs": 3,                           // --set
    "max_steps": -1,                       // default
    "seed": 42,                            // default
    "shuffle": true,                       // default
    "dropout": 0.1,                        // default
    "sizes": [1,2],                        // run.json:2
    "weights": [],                         // default
    "clip_norm": 1.0,                      // default
    "note": null,                          // default
    "data": {
      "path": "x",                         // --set
      "columns": ["premise","hypothesis"]  // default
    }
  }
}
)");
  CHECK(print_config(RunConfig{}, origins, PrintMode::kMinimal) == "{\n}\n");
}

TEST_CASE("changes between two configs are listed", "[config]") {
  RunConfig before, after;
  CHECK(config_changes(before, after).empty());
  after.device = "cpu";
  after.train.clip_norm.reset();
  after.train.data.columns = {"text"};
  const std::vector<ConfigChange> changes = config_changes(before, after);
  REQUIRE(changes.size() == 3);
  CHECK(changes[0].key == "device");
  CHECK(changes[1].key == "train.clip_norm");
  CHECK(changes[1].before == "1.0");
  CHECK(changes[1].after == "null");
  CHECK(changes[2].key == "train.data.columns");
  CHECK(changes[2].after == "[\"text\"]");
}

TEST_CASE("a config that JSON cannot hold is refused", "[config]") {
  RunConfig config;
  config.train.learning_rate = std::nan("");
  CHECK_THROWS_WITH(to_json(config), "train.learning_rate is nan, and JSON has no such number");
}

TEST_CASE("help lists every setting", "[config]") {
  const std::string help = config_help(RunConfig{});
  CHECK_THAT(help, ContainsSubstring("model.type\n    Kind of model.\n    bert, vit, resnet, mlp; "
                                     "default \"bert\"\n"));
  CHECK_THAT(help, ContainsSubstring("train.dropout\n    Share of zeroed activations.\n    a "
                                     "number, at least 0 and below 1; default 0.1\n"));
  CHECK_THAT(help, ContainsSubstring("a list of strings; default [\"premise\",\"hypothesis\"]\n"));
}
