// What comparisons print, for tests.
#pragma once

#include <nlohmann/json.hpp>

#include "tests/support/catch.h"

// compare.json without what clocks said. The summary is left out: it has the numbers of the runs.
inline nlohmann::json untimed(const std::string& text) {
  nlohmann::json json = nlohmann::json::parse(text);
  json.erase("summary");
  for (nlohmann::json& run : json["runs"]) {
    CHECK(run["seconds"]["train"].get<double>() > 0);
    for (const char* key : {"seconds", "own_time_saved", "own_time_saved_interval"}) run.erase(key);
    for (nlohmann::json& evaluation : run["evaluations"])
      CHECK(evaluation.erase("train_seconds") == 1);
    for (const char* group : {"until", "saved"})
      if (run.contains(group))
        for (const char* key : {"seconds", "backward_seconds", "conversion"}) run[group].erase(key);
  }
  if (json.contains("saved"))
    for (const char* key : {"seconds", "backward_seconds", "conversion"}) json["saved"].erase(key);
  return json;
}
