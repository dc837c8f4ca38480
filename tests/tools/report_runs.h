// Folders of runs for `vcas report`, with metrics that no training wrote.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/tools/program.h"

struct RunText {
  nlohmann::json start = {
      {"event", "start"},
      {"step", 0},
      {"time", 0.5},
      {"date", "2026-11-23T12:00:00Z"},
      {"host", "here"},
      {"version", "0.1.0"},
      {"device", "cpu"},
      {"precision", "f32"},
      {"threads", 1},
      {"total_steps", 0},
      {"parameters", 1000},
      {"gates", {"net.block.0", "net.block.1"}},
      {"linears", {"net.block.0.a", "net.block.1.a"}},
      {"config",
       {{"data", {{"type", "synthetic"}}},
        {"model", {{"type", "vit"}}},
        {"optimizer", {{"max_gradient_norm", 2.0}}},
        {"method",
         {{"type", "vcas"}, {"controller", "paper"}, {"tau_act", 0.025}, {"tau_w", 0.025}}}}}};
  int steps = 40, every = 1;  // how often they are logged
  double norm = 1, flops = 0.3, seconds = 2, ratio = 0.5;
  nlohmann::json clip_factor = nullptr;              // null: not logged
  nlohmann::json probed = nlohmann::json::object();  // of each event "variance"
  nlohmann::json best = nlohmann::json::object();    // of the event "end"
  bool old = false, ends = true;

  std::string text() const {
    nlohmann::json first = start;
    first["total_steps"] = steps;
    std::string out = first.dump() + "\n";
    for (int step = 1; step <= steps; ++step) {
      nlohmann::json line = {
          {"event", "train"},
          {"step", step},
          {"time", seconds * step},
          {"loss", 2.0 - step * 0.01},
          {"accuracy", 0.5},
          {"learning_rate", 0.1},
          {"gradient_norm", norm},
          {"seconds", {{"forward", 1}, {"backward", seconds - 1}, {"probe", 0}, {"optimizer", 0}}},
          {"train_seconds", seconds * step},
          {"flops_saved", flops},
          {"formula_flops_saved", flops},
          {"time_saved", nullptr}};
      if (!clip_factor.is_null()) line["clip_factor"] = clip_factor;
      if (step % every == 0) out += line.dump() + "\n";
      if (step % 10 != 0) continue;
      nlohmann::json probe = {{"event", "variance"},
                              {"step", step},
                              {"time", 1},
                              {"v_s", 10},
                              {"v_act", 0.2},
                              {"v_w", 0.1},
                              {"act_ratio", {ratio, ratio}},
                              {"weight_ratio", {ratio, ratio}}};
      if (!old) probe.update({{"gate_norm", {1.0, 2.0}}, {"gate_share", {0.2, 0.4}}});
      probe.update(probed);
      out += probe.dump() + "\n";
      out += nlohmann::json({{"event", "eval"},
                             {"step", step},
                             {"time", 1},
                             {"loss", 1.0},
                             {"accuracy", step / 100.0},
                             {"items", 64},
                             {"best", true},
                             {"train_seconds", seconds * step},
                             {"train_flops", 1e9 * step}})
                 .dump() +
             "\n";
    }
    if (!ends) return out;
    nlohmann::json end = {
        {"event", "end"},
        {"step", steps},
        {"time", 1},
        {"train_loss", 1.25},
        {"train_seconds", seconds * steps},
        {"flops_saved", flops},
        {"totals", {{"forward_seconds", steps}, {"backward_seconds", steps * (seconds - 1)}}}};
    end.update(best);
    return out + end.dump() + "\n";
  }
};

class Runs : public TemporaryFolder {
 public:
  void add(const std::string& name, const std::string& metrics) const {
    std::filesystem::create_directories(path() / name);
    write_text(path() / name / "metrics.jsonl", metrics);
  }
  Outcome report(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "report");
    return run(path(), arguments);
  }
};

inline RunText exact_run() {
  RunText run;
  run.start["config"]["method"] = {{"type", "exact"}};
  run.seconds = 2.5;
  run.flops = 0;
  return run;
}
