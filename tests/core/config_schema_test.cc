// The JSON schema and the reader must agree on what a config is.
#include <string>
#include <vector>

#include "core/config.h"
#include "core/error.h"
#include "tests/core/json_schema_check.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

struct OptimizerConfig {
  std::string name = "adamw";
  std::vector<double> betas = {0.9, 0.999};
  std::optional<std::string> schedule;

  void fields(Setting& v) {
    v.field("name", name, "Method.", one_of({"adam", "adamw", "sgd"}));
    v.field("betas", betas, "Decay of the moments.", at_least(0), below(1));
    v.field("schedule", schedule, "Schedule.", one_of({"linear", "cosine"}));
  }
};

struct ToolConfig {
  bool verbose = false;
  int batch_size = 64;
  std::int64_t steps = 100;
  std::uint64_t seed = 1;
  double rate = 1e-3;
  std::vector<int> sizes = {2};
  std::vector<std::string> names = {"a"};
  std::optional<int> limit;
  Duration epochs = Duration::epochs(3);
  Duration every = 1;
  OptimizerConfig optimizer;

  void fields(Setting& v) {
    v.field("verbose", verbose, "More output.");
    v.field("batch_size", batch_size, "Items in a step.", at_least(1));
    v.field("steps", steps, "Steps.", between(0, 1000));
    v.field("seed", seed, "Seed.");
    v.field("rate", rate, "Rate.", above(0), at_most(1));
    v.formerly("optimizer.rate");
    v.field("sizes", sizes, "Sizes.", at_least(1));
    v.field("names", names, "Names.");
    v.field("limit", limit, "Limit.");
    v.field("epochs", epochs, "Epochs.", above(0));
    v.field("every", every, "Every.", at_least(0));
    v.section("optimizer", optimizer, "The optimizer.");
  }
};

bool reader_accepts(const std::string& text) {
  ToolConfig config;
  try {
    read_config(config, {.documents = {{"x.json", text}}});
    return true;
  } catch (const Error&) {
    return false;
  }
}

bool schema_accepts(const std::string& text) {
  return accepts(json_schema(ToolConfig{}), nlohmann::json::parse(text));
}

}  // namespace

TEST_CASE("the reader and the schema accept the same documents", "[config]") {
  const std::vector<std::string> good = {
      R"({})",
      R"({"$schema": "vcas.schema.json"})",
      R"({"verbose": true, "batch_size": 1, "steps": 0})",
      R"({"batch_size": 2147483647, "steps": 1000})",
      R"({"seed": 9223372036854775807})",
      R"({"rate": 1})",
      R"({"rate": 1e-300})",
      R"({"optimizer": {"rate": 0.5}})",
      R"({"sizes": [], "names": []})",
      R"({"sizes": [1, 2], "names": ["", "é"]})",
      R"({"limit": null})",
      R"({"limit": -2147483648})",
      R"({"optimizer": {}})",
      R"({"optimizer": {"name": "sgd", "betas": [0, 0.5], "schedule": "cosine"}})",
      R"({"optimizer": {"schedule": null}})",
      R"({"epochs": 0.5, "every": 0})",
      R"({"epochs": "0.5ep", "every": "500st"})",
      R"({"x-note": {"a": [1]}, "optimizer": {"x-y": null}})",
      R"({"config_version": 1})",
  };
  const std::vector<std::string> bad = {
      R"({"optimizer": {"rate": 2}})",
      R"([])",
      R"(null)",
      R"({"$schema": 1})",
      R"({"batchsize": 1})",
      R"({"verbose": 1})",
      R"({"batch_size": 0})",
      R"({"batch_size": 2147483648})",
      R"({"batch_size": 1.0})",
      R"({"batch_size": "1"})",
      R"({"batch_size": null})",
      R"({"steps": 1001})",
      R"({"seed": -1})",
      R"({"rate": 0})",
      R"({"rate": 1.5})",
      R"({"rate": "x"})",
      R"({"sizes": 1})",
      R"({"sizes": [0]})",
      R"({"sizes": [1, 1.5]})",
      R"({"names": [1]})",
      R"({"limit": 2147483648})",
      R"({"limit": false})",
      R"({"optimizer": "adam"})",
      R"({"optimizer": null})",
      R"({"optimizer": {"name": "adamx"}})",
      R"({"optimizer": {"betas": [1.0]}})",
      R"({"optimizer": {"schedule": "linea"}})",
      R"({"optimizer": {"$schema": "x"}})",
      R"({"epochs": 0})",
      R"({"epochs": "3"})",
      R"({"every": 1.5})",
      R"({"every": "1.5st"})",
      R"({"every": "10Mtok"})",
      R"({"every": -1})",
      R"({"x_note": 1})",
      R"({"config_version": 2})",
      R"({"config_version": 0})",
      R"({"optimizer": {"config_version": 1}})",
  };
  for (const std::string& text : good) {
    CAPTURE(text);
    CHECK(reader_accepts(text));
    CHECK(schema_accepts(text));
  }
  for (const std::string& text : bad) {
    CAPTURE(text);
    CHECK_FALSE(reader_accepts(text));
    CHECK_FALSE(schema_accepts(text));
  }
}

TEST_CASE("the schema carries help, defaults and ranges", "[config]") {
  const nlohmann::ordered_json schema = json_schema(ToolConfig{});
  CHECK(schema["$schema"] == "http://json-schema.org/draft-07/schema#");
  CHECK(schema["additionalProperties"] == false);
  const auto& properties = schema["properties"];
  CHECK(properties["rate"].dump() ==
        R"({"type":"number","exclusiveMinimum":0.0,"maximum":1.0,"description":"Rate.",)"
        R"("default":0.001})");
  CHECK(properties["limit"]["type"].dump() == R"(["integer","null"])");
  CHECK(properties["optimizer"]["description"] == "The optimizer.");
  CHECK(properties["optimizer"]["properties"]["schedule"]["enum"].dump() ==
        R"(["linear","cosine",null])");
  CHECK(properties["optimizer"]["properties"]["betas"]["items"]["exclusiveMaximum"] == 1);
}

TEST_CASE("the judge of schemas refuses what it does not know", "[config]") {
  CHECK_THROWS_WITH(accepts({{"not", {{"type", "string"}}}}, 1),
                    "json_schema_check.h does not know the keyword not");
  CHECK(accepts({{"minimum", 3}}, "a string"));
  CHECK_FALSE(accepts({{"type", "integer"}}, 2.0));
  const nlohmann::json named = {{"patternProperties", {{"^x-", {{"pattern", "b$"}}}}},
                                {"additionalProperties", false}};
  CHECK(accepts(named, {{"x-a", "ab"}}));
  CHECK_FALSE(accepts(named, {{"x-a", "ba"}}));
  CHECK_FALSE(accepts(named, {{"a-x-", "ab"}}));
}
