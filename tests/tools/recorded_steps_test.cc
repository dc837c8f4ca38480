#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/tools/program.h"

TEST_CASE("a trace has the operations of the steps that are asked for") {
  const TinyRun tiny;
  succeeded(run(tiny.path(), {"vcas-train", "tiny.json", "run.folder=out", "--trace", "trace.json",
                              "--profile-steps", "3:4"}));
  const nlohmann::json trace = tiny.json("trace.json");
  const auto calls = [&](const std::string& operation) {
    return std::ranges::count_if(
        trace, [&](const nlohmann::json& event) { return event["cat"] == operation; });
  };
  // Two steps, two blocks of one attention each.
  CHECK(calls("attention_forward") == 4);
  CHECK(calls("attention_backward") == 4);
}

TEST_CASE("steps to profile that a checkpoint is past are refused, and nothing is changed") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out"}));
  const std::string metrics = content(tiny.path() / "out/metrics.jsonl");
  const std::vector<std::string> resume = {"vcas-train",  "--resume",        "out/checkpoint-20",
                                           "--overwrite", "--profile-steps", "20:30"};
  check_failure(run(tiny.path(), resume), 2,
                {"--profile-steps 20:30 is not within the steps of this run, 21:40\n"});
  CHECK(content(tiny.path() / "out/metrics.jsonl") == metrics);
}
