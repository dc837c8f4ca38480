// `vcas compare` with variants and seeds.
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "core/metrics.h"
#include "tests/support/catch.h"
#include "tests/support/fewer_cases.h"
#include "tests/tools/comparison.h"
#include "tests/tools/program.h"
#include "tests/tools/tiny_text.h"

namespace fs = std::filesystem;
using Catch::Matchers::WithinRel;
using nlohmann::json;

namespace {

std::vector<std::string> three_variants(std::vector<std::string> more) {
  more.insert(more.begin(),
              {"compare", "tiny.json", "--variant", "half: method.act_ratio=[0.5]", "--variant",
               "exact", "--variant=long:train.steps=60 optimizer.weight_decay=0.01", "--seeds",
               "3,0,7", "train.eval_every=10"});
  return more;
}

// The number of each run of the variant, in the order of seeds.
std::vector<double> numbers(const json& comparison, const std::string& variant,
                            const std::string& pointer) {
  std::vector<double> list;
  for (const json& run : comparison["runs"])
    if (run["variant"] == variant) list.push_back(run.at(json::json_pointer(pointer)));
  return list;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double deviation(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += std::pow(value - mean(values), 2);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

TEST_CASE("compare: variants at seeds have means, spreads and paired differences") {
  const TinyRun tiny;
  const Outcome outcome = run(tiny.path(), three_variants({"--folder", "out"}));
  INFO(outcome.err << outcome.out);
  REQUIRE(outcome.code == 0);
  const json all = tiny.json("out/compare.json");
  CHECK(all["base"] == "exact");
  CHECK(all["seeds"] == json({3, 0, 7}));
  REQUIRE(all["runs"].size() == 9);
  CHECK(all["runs"][3]["name"] == "half/seed0");
  CHECK(all["runs"][5]["steps"] == 60);
  CHECK_FALSE(all.contains("saved"));
  const json& half = all["summary"][0];
  CHECK(half["name"] == "half");
  for (const auto& [key, pointer] :
       std::map<std::string, std::string>{{"train_loss", "/train_loss"},
                                          {"eval_accuracy", "/eval_accuracy"},
                                          {"best.loss", "/best/loss"},
                                          {"seconds.forward", "/seconds/forward"},
                                          {"flops.total", "/flops/total"},
                                          {"flops.total_backward", "/flops/total_backward"}}) {
    CAPTURE(key);
    const std::vector<double> values = numbers(all, "half", pointer);
    std::vector<double> differences = values;
    for (std::size_t i = 0; i < 3; ++i) differences[i] -= numbers(all, "exact", pointer)[i];
    const json &value = half["values"][key], &difference = half["minus_base"][key];
    CHECK(value["seeds"] == 3.0);
    CHECK_THAT(value["mean"].get<double>(), WithinRel(mean(values), 1e-9));
    CHECK_THAT(value["spread"].get<double>(), WithinRel(deviation(values), 1e-9));
    CHECK_THAT(difference["mean"].get<double>(), WithinRel(mean(differences), 1e-9));
    CHECK_THAT(difference["spread"].get<double>(),
               WithinRel(deviation(differences) / std::sqrt(3.0), 1e-9));
  }
  for (const json& run : all["runs"]) {
    const json& flops = run["flops"];
    CHECK(flops["total"] == flops["forward"].get<double>() + flops["backward"].get<double>() +
                                flops["probe"].get<double>());
    CHECK(run["best"]["loss"] <= run["eval_loss"]);
    CHECK(run["best"]["accuracy"] >= run["eval_accuracy"]);
    CHECK(run["evaluations"].back()["train_flops"] == flops["total"]);
  }
  CHECK_THAT(all["runs"][0]["saved"]["flops"].get<double>(),
             WithinRel(1 - numbers(all, "half", "/flops/total")[0] /
                               numbers(all, "exact", "/flops/total")[0],
                       1e-9));
  CHECK_THAT(half["values"]["saved.conversion"]["mean"].get<double>(),
             WithinRel(mean(numbers(all, "half", "/saved/seconds")) /
                           mean(numbers(all, "half", "/saved/flops")),
                       1e-9));
  check_contains(outcome.out, {"\n  minus exact", " ±", "\nMeans of 3 seeds", "\n  data "});
}

TEST_CASE("compare: what sampling added, and savings over padded texts") {
  const TinyText tiny;
  succeeded(tiny.vcas({"compare", "tiny.json", "--folder", "out", "method.update_every=4",
                       "--variant", "exact", "--variant", "sampled: method.type=vcas"}));
  const json all = tiny.json("out/compare.json");
  double items = 0, rows = 0, exact = 0, padded = 0;
  for (const json& line : vcas::read_metrics(tiny.path() / "out/sampled/metrics.jsonl")) {
    if (line["event"] == "start") padded = line["padded_step_flops"];
    if (line["event"] != "variance" || 2 * line["step"].get<int>() < all["runs"][1]["steps"])
      continue;
    items += line["v_act"].get<double>();
    rows += line["v_w"].get<double>();
    exact += line["v_s"].get<double>();
  }
  const json& added = all["runs"][1]["added_variance"];
  CHECK_THAT(added["items"].get<double>(), WithinRel(items / exact, 1e-9));
  CHECK_THAT(added["rows"].get<double>(), WithinRel(rows / exact, 1e-9));
  CHECK_FALSE(all["runs"][0].contains("added_variance"));

  // Shorter texts cost less than padded ones, by the same count.
  const json& flops = all["runs"][0]["flops"];
  CHECK(flops["padded"] == padded * all["runs"][0]["steps"].get<double>());
  CHECK(flops["padded_saved"] == 1 - flops["total"].get<double>() / flops["padded"].get<double>());
  CHECK(flops["padded_saved"] > 0.05);
  CHECK(contains(content(tiny.path() / "out/compare.md"),
                 "| … saved, over exact training with padded texts |"));
}

TEST_CASE("compare: the tables have the numbers of compare.json") {
  const TinyRun tiny;
  const Outcome outcome = succeeded(run(tiny.path(), three_variants({"--folder", "out"})));
  const json all = tiny.json("out/compare.json");
  const std::vector<std::string> csv = lines_of(content(tiny.path() / "out/compare.csv"));
  REQUIRE(csv.size() == 10);
  CHECK(csv[0].starts_with("variant,seed,steps,train_loss,eval_loss,"));
  for (std::size_t i = 0; i < 9; ++i) {
    const json& run = all["runs"][i];
    CHECK(csv[i + 1].starts_with(run["variant"].get<std::string>() + "," + run["seed"].dump() +
                                 "," + run["steps"].dump() + "," + run["train_loss"].dump() + ","));
    CHECK(std::ranges::count(csv[i + 1], ',') == std::ranges::count(csv[0], ','));
  }
  std::vector<std::string> markdown = lines_of(content(tiny.path() / "out/compare.md"));
  std::erase(markdown, "");
  const std::vector<std::string> text = lines_of(outcome.out);
  CHECK(markdown[0] == "|  | half | exact | long |");
  CHECK(markdown[1] == "|---|---:|---:|---:|");
  CHECK(markdown[2] == "| steps | 40 | 40 | 60 |");
  const auto squeezed = [](std::string line) {
    for (const char* part : {"|", "…", " "})
      for (std::size_t at; (at = line.find(part)) != std::string::npos;)
        line.erase(at, std::string(part).size());
    return line;
  };
  REQUIRE(markdown.size() == text.size() + 1);
  for (std::size_t i = 1; i < text.size(); ++i)
    CHECK(squeezed(markdown[i + 1]) == squeezed(text[i]));
  CHECK(text[text.size() - 2] == "Runs differ in their steps: savings are of whole runs.");
}

TEST_CASE("compare: a run beside others has the bits of a run alone, and leaves no weights") {
  const TinyRun tiny;
  succeeded(run(tiny.path(), three_variants({"--folder", "out"})));
  const auto losses = [&](const char* folder) {
    std::vector<double> list;
    for (const json& line : events_of(tiny.path() / folder / "metrics.jsonl", "train"))
      list.push_back(line["loss"]);
    return list;
  };
  succeeded(tiny.train({"seed=7", "train.steps=60", "optimizer.weight_decay=0.01",
                        "run.folder=alone", "train.eval_every=10"}));
  CHECK(losses("out/long/seed7").size() == 60);
  CHECK(losses("out/long/seed7") == losses("alone"));
  for (const char* name : {"half/seed3", "exact/seed7"}) {
    const fs::path folder = tiny.path() / "out" / name;
    CHECK(saved_steps(folder).empty());
    CHECK_FALSE(fs::is_symlink(folder / "best"));
    CHECK(json::parse(content(folder / "config.json"))["seed"] == (name[0] == 'h' ? 3 : 7));
    CHECK(vcas::read_metrics(folder / "metrics.jsonl").back()["event"] == "end");
  }
  succeeded(run(tiny.path(), three_variants({"--folder", "kept", "--keep-weights"})));
  succeeded(run(tiny.path(), {"eval", "--model", "kept/half/seed3/best"}));
}

TEST_CASE("compare: the time until a measure is that of the first evaluation that has it") {
  const TinyRun tiny;
  const auto compare = [&](const std::vector<std::string>& more,
                           const std::string& measure = "accuracy") {
    const Outcome outcome =
        succeeded(run(tiny.path(), with({"compare", "tiny.json", "train.eval_every=4",
                                         "train.best_measure=" + measure, "--overwrite"},
                                        more)));
    const json all = tiny.json("runs/tiny-compare/compare.json");
    const double target =
        more.empty() ? all["runs"][0]["eval_" + measure].get<double>() : std::stod(more[1]);
    const std::string reached = more.empty() ? measure : "accuracy";
    for (const json& run : all["runs"]) {
      const json* first = nullptr;
      for (const json& evaluation : run["evaluations"])
        if (!first &&
            (reached == "loss" ? evaluation["loss"] <= target : evaluation["accuracy"] >= target))
          first = &evaluation;
      CHECK(run["evaluations"].size() == 10);
      CHECK(run["until"]["measure"] == reached);
      CHECK(run["until"]["value"] == target);
      CHECK(run["until"]["step"] == (first ? (*first)["step"] : json()));
      CHECK(run["until"]["seconds"] == (first ? (*first)["train_seconds"] : json()));
      CHECK(run["until"]["flops"] == (first ? (*first)["train_flops"] : json()));
    }
    CHECK(all["runs"][0]["until"]["step"].is_number() == (reached == "loss" || target < 1));
    return outcome.out;
  };
  CHECK(contains(compare({}), "\nseconds until accuracy of exact "));
  CHECK(contains(compare({}, "loss"), "\nseconds until loss of exact "));
  CHECK(contains(compare({"--to-accuracy", "0.3"}, "loss"), "\nTFLOP until accuracy 0.3 "));
  // As good as the best one, no better: accuracies of 64 items are exact in decimals.
  const json all = tiny.json("runs/tiny-compare/compare.json");
  compare({"--to-accuracy", all["runs"][0]["best"]["accuracy"].dump()});
  const std::string never = compare({"--to-accuracy", "1"});
  CHECK(contains(never.substr(never.find("\nseconds until accuracy 1 ")), " never "));
}

TEST_CASE("compare: an accuracy that some seeds never had has no mean") {
  const TinyRun tiny;
  const auto compare = [&](const std::string& accuracy) {
    const Outcome outcome =
        succeeded(run(tiny.path(), {"compare", "tiny.json", "train.eval_every=4", "--overwrite",
                                    "--seeds", "0,1", "--to-accuracy", accuracy}));
    return outcome.out;
  };
  compare("0.5");
  const json all = tiny.json("runs/tiny-compare/compare.json");
  const auto best = [&](std::size_t run) {
    return all["runs"][run]["best"]["accuracy"].get<double>();
  };
  REQUIRE(all["runs"][0]["variant"] == "exact");
  std::vector<double> exact;
  for (std::size_t run = 0; run < all["runs"].size(); ++run)
    if (all["runs"][run]["variant"] == "exact") exact.push_back(best(run));
  REQUIRE(exact.size() == 2);
  REQUIRE(exact[0] != exact[1]);
  const std::string table = compare(json(std::max(exact[0], exact[1])).dump());
  CHECK(contains(table.substr(table.find("\nTFLOP until accuracy ")), " never in 1 of 2 "));
}

TEST_CASE("compare: seeds that are finished are not run again after a stop or a kill") {
  const TinyRun tiny;
  const std::vector<std::string> settings = {"train.steps=400", "train.eval_every=100"};
  const auto arguments = [&](const std::string& folder) {
    return with(three_variants({"--folder", folder, "--json"}), settings);
  };
  const Outcome whole = succeeded(run(tiny.path(), arguments("whole")));
  for (const int signal : vcas::cases_to_run({SIGTERM, SIGKILL})) {
    INFO("signal " << signal);
    fs::remove_all(tiny.path() / "cut");
    {
      const Process process(tiny.path(), arguments("cut"));
      REQUIRE(wait_for_lines(tiny.path() / "cut/half/seed0/metrics.jsonl", 200));
      process.signal(signal);
      const Outcome stopped = process.wait();
      INFO(stopped.err);
      REQUIRE(stopped.code == (signal == SIGKILL ? 128 + SIGKILL : 75));
      if (signal == SIGTERM) {
        check_contains(stopped.err, {"; saved cut/half/seed0/checkpoint-",
                                     "the numbers are of the seeds that are finished\n"});
        CHECK(json::parse(stopped.out)["summary"][0]["values"]["train_loss"]["seeds"] == 1.0);
      }
    }
    CHECK_FALSE(fs::exists(tiny.path() / "cut/half/seed7/metrics.jsonl"));
    const std::string finished = content(tiny.path() / "cut/half/seed3/metrics.jsonl");
    const Outcome resumed = succeeded(run(tiny.path(), {"compare", "--resume", "cut", "--json"}));
    CHECK(contains(resumed.err, "half/seed0: resuming cut/half/seed0/checkpoint-"));
    CHECK_FALSE(contains(resumed.err, "seed3"));
    CHECK(content(tiny.path() / "cut/half/seed3/metrics.jsonl") == finished);
    CHECK(untimed(resumed.out) == untimed(whole.out));
    CHECK(saved_steps(tiny.path() / "cut/half/seed0").empty());
    const Outcome again =
        run(tiny.path(),
            three_variants({"--resume", "--json", settings[0], settings[1], "run.folder=cut"}));
    INFO(again.err);
    CHECK(again.out == resumed.out);
  }
}

TEST_CASE("compare: a run that diverges leaves the others as they are") {
  const TinyRun tiny;
  const std::vector<std::string> hot = {
      "compare",
      "tiny.json",
      "--seeds",
      "0,1",
      "--variant",
      "exact",
      "--variant",
      "hot: method.type=exact schedule.learning_rate=1e30 schedule.kind=constant",
      "train.checkpoint_every=1"};
  const auto compare = [&](const std::vector<std::string>& more) { return with(hot, more); };
  const Outcome outcome = run(tiny.path(), compare({"--folder", "out", "train.steps=20"}));
  INFO(outcome.err << outcome.out);
  REQUIRE(outcome.code == 70);
  const std::string notes =
      "hot/seed0 diverged at step 2: its numbers are left out.\n"
      "hot/seed1 diverged at step 2: its numbers are left out.\n";
  CHECK(contains(outcome.out, notes));
  CHECK_FALSE(contains(outcome.out, "Runs differ"));
  for (const char* seed : {"0", "1"}) {
    const std::string name = std::string("hot/seed") + seed;
    check_contains(outcome.err, {name + ": warning: step 2: loss is ",
                                 (seed[0] == '0' ? "error: " : "\n") + name + ": step 2: loss is ",
                                 "\n  vcas replay out/" + name + " names the operation\n"});
    CHECK(saved_steps(tiny.path() / "out" / name) == std::vector<std::int64_t>{1});
    CHECK(saved_steps(tiny.path() / "out/exact/seed" += seed).empty());
  }
  CHECK(contains(outcome.err, "\n  hint: try a lower schedule.learning_rate"));
  const json all = tiny.json("out/compare.json");
  for (const json& run : all["runs"]) {
    const bool diverged = run["variant"] == "hot";
    CHECK(run.contains("steps") != diverged);
    CHECK((diverged ? run["diverged"]["step"] : run["steps"]) == (diverged ? 2 : 20));
  }
  CHECK(all["summary"][0]["values"]["train_loss"]["seeds"] == 2.0);
  CHECK(all["summary"][1]["values"].empty());
  CHECK(lines_of(content(tiny.path() / "out/compare.csv")).size() == 5);
  CHECK(contains(content(tiny.path() / "out/compare.md"), "| steps | 20 | - |\n"));

  const auto files = snapshot(tiny.path() / "out");
  const Outcome resumed = run(tiny.path(), {"compare", "--resume", "out"});
  CHECK(resumed.code == 70);
  CHECK(resumed.out == outcome.out);
  CHECK(resumed.err == outcome.err.substr(outcome.err.find("error: ")));
  CHECK(snapshot(tiny.path() / "out") == files);

  const std::string lines = "cut/hot/seed1/metrics.jsonl";
  {
    const Process process(
        tiny.path(), compare({"--folder", "cut", "train.steps=400", "train.checkpoint_every=100"}));
    REQUIRE(wait_for_lines(tiny.path() / "cut/exact/seed1/metrics.jsonl", 100));
    process.signal(SIGTERM);
    const Outcome stopped = process.wait();
    INFO(stopped.err);
    CHECK(stopped.code == 75);
    CHECK(contains(stopped.out, notes));
    CHECK_FALSE(contains(stopped.out, "Runs differ"));
  }
  const std::string before = content(tiny.path() / lines);
  CHECK(run(tiny.path(), {"compare", "--resume", "cut"}).code == 70);
  CHECK(content(tiny.path() / lines) == before);
  CHECK(contains(content(tiny.path() / "cut/compare.md"), "| steps | 400 | - |\n"));
}

TEST_CASE("compare: without the base's run a seed has no savings") {
  const TinyRun tiny;
  REQUIRE(run(tiny.path(), {"compare", "tiny.json", "--folder", "out", "--seeds", "0,1"}).code ==
          0);
  const fs::path file = tiny.path() / "out/compare.json";
  json all = json::parse(content(file));
  all["runs"][2] = {
      {"name", "exact/seed1"},
      {"variant", "exact"},
      {"seed", 1},
      {"diverged", {{"step", 7}, {"why", "step 7: loss is nan"}, {"hint", "try another"}}}};
  for (const char* key : {"saved", "until"}) all["runs"][3].erase(key);
  all["runs"][0]["eval_accuracy"] = 0;  // the other run had it at once
  write_text(file, all.dump());
  const Outcome outcome = run(tiny.path(), {"compare", "--resume", "out"});
  INFO(outcome.err << outcome.out);
  check_message(outcome, 70, "error: exact/seed1: step 7: loss is nan\n  hint: try another\n");
  CHECK(contains(outcome.out, "\nseconds until accuracy of exact "));
  CHECK_FALSE(contains(outcome.out, "never"));
  CHECK(contains(outcome.out, "\nexact/seed1 diverged at step 7: its numbers are left out.\n"));
  all = json::parse(content(file));
  CHECK(all["runs"][1].contains("saved"));
  CHECK_FALSE(all["runs"][3].contains("saved"));
  const json& sampled = all["summary"][1];
  CHECK(sampled["values"]["train_loss"]["seeds"] == 2.0);
  CHECK(sampled["values"]["saved.flops"]["seeds"] == 1.0);
  CHECK(sampled["minus_base"]["train_loss"]["seeds"] == 1.0);
  CHECK(contains(content(tiny.path() / "out/compare.md"), "| steps | 40 (1 of 2) | 40 |\n"));
}

TEST_CASE("compare: numbers of unequal steps are not shown") {
  const TinyRun tiny;
  succeeded(run(tiny.path(), {"compare", "tiny.json", "--folder", "out", "train.steps=1000",
                              "train.eval_every=1000", "train.checkpoint_every=500"}));
  json all = tiny.json("out/compare.json");
  for (json& run : all["runs"]) run.erase("evaluations");
  write_text(tiny.path() / "out/compare.json", all.dump());
  forget_after(tiny.path() / "out/vcas", 500);
  const Process process(tiny.path(), {"compare", "--resume", "out"});
  while (process.runs() && !contains(content(tiny.path() / "stderr.txt"), "vcas: resuming "))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  process.signal(SIGTERM);
  const Outcome stopped = process.wait();
  INFO(stopped.err);
  CHECK(stopped.code == 75);
  CHECK(stopped.out.empty());
  CHECK(contains(stopped.err,
                 "there are no numbers of equal steps yet\n  hint: go on with --resume\n"));
}

TEST_CASE("compare: seeds that fail before they have saved leave what they were to replace") {
  const TinyRun tiny;
  succeeded(run(tiny.path(), three_variants({"--folder", "out"})));
  std::map<std::string, std::string> before;
  for (const char* file : {"compare.json", "compare.csv", "compare.md", "half/seed0/metrics.jsonl",
                           "long/seed7/config.json"})
    before[file] = content(tiny.path() / "out" / file);
  const auto overwrite = [&](const std::vector<std::string>& more) {
    return run(tiny.path(), three_variants(with({"--folder", "out", "--overwrite"}, more)));
  };
  CHECK(overwrite({"schedule.learning_rate=1e30", "schedule.kind=constant"}).code == 70);
  for (const auto& [file, text] : before) CHECK(content(tiny.path() / "out" / file) == text);
  succeeded(overwrite({"schedule.learning_rate=1e-3"}));
  for (const auto& [file, text] : before) CHECK(content(tiny.path() / "out" / file) != text);
  CHECK_FALSE(fs::exists(tiny.path() / "out/replaced"));
}

TEST_CASE("compare: without an exact variant the first one is the base, and the table says so") {
  const TinyRun tiny;
  const Outcome outcome =
      succeeded(run(tiny.path(), {"compare", "tiny.json", "--variant", "a: method.controller=paper",
                                  "--variant", "b:method.controller=budget train.steps=30"}));
  check_contains(outcome.out, {"\nRuns differ in their steps: savings are of whole runs.\n",
                               "\nNo variant is exact: savings are over a, the first one.\n"});
  CHECK_FALSE(contains(outcome.out, "±"));
  CHECK_FALSE(contains(outcome.out, "minus"));
  CHECK(fs::exists(tiny.path() / "runs/tiny-compare/b/best/model.safetensors"));
}

TEST_CASE("compare: a folder of an earlier program goes on, and configurations of other lengths") {
  const TinyRun tiny;
  write_text(tiny.path() / "long.json", content(tiny.path() / "tiny.json"));
  std::string text = content(tiny.path() / "long.json");
  text.replace(text.find("\"steps\": 40"), 11, "\"steps\": 130");
  text.replace(0, 1, "{\"run\": {\"folder\": \"unused\"},");
  write_text(tiny.path() / "long.json", text);
  succeeded(run(tiny.path(), {"compare", "long.json", "tiny.json", "--folder", "out"}));
  json comparison = tiny.json("out/compare.json");
  json earlier;
  for (const json& run : comparison["runs"])
    earlier["runs"].push_back({{"name", run["name"]}, {"steps", run["steps"]}});
  write_text(tiny.path() / "out/compare.json", earlier.dump());
  const Outcome resumed = succeeded(run(tiny.path(), {"compare", "--resume", "out"}));
  CHECK(contains(resumed.err, "long: resuming out/long/checkpoint-130 at step 130/130"));
  json resumed_comparison = tiny.json("out/compare.json");
  for (std::size_t i = 0; i < 2; ++i)
    for (const char* key : {"steps", "train_loss", "flops", "best", "eval_loss"})
      CHECK(resumed_comparison["runs"][i][key] == comparison["runs"][i][key]);
}

TEST_CASE("compare: bad variants and seeds have errors of their own") {
  const TinyRun tiny;
  write_text(tiny.path() / "other.json", content(tiny.path() / "tiny.json"));
  std::string fewer = content(tiny.path() / "tiny.json");
  fewer.replace(fewer.find("\"items\": 256"), 12, "\"items\": 128");
  write_text(tiny.path() / "fewer.json", fewer);
  write_text(tiny.path() / "best.json", content(tiny.path() / "tiny.json"));
  for (const char* name : {"a|b.json", "c\nd.json"})
    write_text(tiny.path() / name, content(tiny.path() / "tiny.json"));
  write_text(tiny.path() / "threaded.json",
             std::regex_replace(fewer, std::regex("\"threads\": 1"), "\"threads\": 2"));
  struct Case {
    std::vector<std::string> arguments;
    int code;
    std::string error;
  };
  const std::string exact = "--variant=exact";
  const std::vector<Case> cases = {
      {{"--variant", ": seed=1"}, 2, "error: --variant \": seed=1\": the name is empty\n"},
      {{"--variant", "a/b: seed=1"}, 2, "\": a name has ASCII letters, digits and _ . + - only"},
      {{"--variant", "a b: seed=1"}, 2, "\": a name has ASCII letters, digits and _ . + - only"},
      {{"--variant", "best: seed=1"}, 2, "\": \"best\" is the name of a file of runs\n"},
      {{"--variant", "report.html: seed=1"},
       2,
       "\": \"report.html\" is the name of a file of runs"},
      {{"--variant", "log.txt.tmp: seed=1"},
       2,
       "\": \"log.txt.tmp\" is the name of a file of runs"},
      {{"--variant", "paper"}, 2, "error: --variant \"paper\": the settings are missing\n  hint: "},
      {{exact, exact}, 2, "error: --variant \"exact\": another variant is called \"exact\"\n"},
      {{exact},
       2,
       "error: one --variant has nothing to be compared with\n"
       "  hint: without --variant the configuration is compared with exact training\n"},
      {{"--variant", "x: method.controler=paper"},
       78,
       "variant \"x\": --set method.controler=paper: error: unknown key \"controler\""},
      {{"--variant", "x: run.seed=1"}, 78, "\n  \"seed\" stands in no section\n"},
      {{"--variant", "x: nonsense"},
       78,
       "variant \"x\": --set nonsense: error: expected key=value"},
      {{"--variant", "x: data.eval_limit=9"},
       78,
       "error: variant \"x\": data.eval_limit differs (0 -> 9); results on other data do not "
       "compare\n  hint: set it for all, as --set data.eval_limit=VALUE\n"},
      {{"--variant", "x: seed=9"},
       78,
       "error: variant \"x\": seed differs (0 -> 9); it is the same for all variants\n  hint: "
       "--seeds 0,1,2 runs all variants with each seed\n"},
      {{"--variant", "x: run.folder=y"}, 78, "error: variant \"x\": run.folder differs"},
      {{"--variant", "x: method.forward=true method.forward_ratio=0.5 train.batch_size=1", exact},
       78,
       "error: variant \"x\": method.forward: "},
      {{"--seeds", "0,x"}, 2, "error: --seeds takes whole numbers from 0, got \"x\"\n  hint: "},
      {{"--seeds", "0,-1"}, 2, "error: --seeds takes whole numbers from 0, got \"-1\"\n"},
      {{"--seeds", ""}, 2, "error: --seeds takes whole numbers from 0, got \"\"\n"},
      {{"--seeds", "0,,1"}, 2, "error: --seeds takes whole numbers from 0, got \"\"\n"},
      {{"--seeds", "2,1,2"}, 2, "error: --seeds has 2 twice\n"},
      {{"--to-accuracy", "88"}, 2, "--to-accuracy: Value 88 not in range"},
      {{"--to-accuracy", "0.5", "train.measures=[\"f1\"]"},
       78,
       "error: --to-accuracy needs accuracy among the measures\n  hint: train.measures="},
      {{"fewer.json"},
       78,
       "error: variant \"fewer\": data.synthetic.items differs (256 -> 128); results on other data "
       "do not compare\n  hint: set it for all, as --set data.synthetic.items=VALUE\n"},
      {{"threaded.json", "data.synthetic.items=256"},
       78,
       "error: variant \"threaded\": threads differs (1 -> 2); it is the same for all variants\n"},
      {{"best.json"},
       2,
       "error: best.json: \"best\" is the name of a file of runs\n  hint: a comparison names runs "
       "by their files: give the file another name\n"},
      {{"a|b.json"}, 2, "error: a|b.json: a name has ASCII letters, digits and _ . + - only"},
      {{"c\nd.json"}, 2, "error: c\nd.json: a name has ASCII letters, digits and _ . + - only"},
      {{"other.json", exact}, 2, "error: --variant is for one configuration\n"},
  };
  for (const Case& test : cases) {
    const std::vector<std::string> arguments = with({"compare", "tiny.json"}, test.arguments);
    const Outcome outcome = run(tiny.path(), arguments);
    CAPTURE(arguments);
    check_failure(outcome, test.code, {test.error});
    CHECK(outcome.out.empty());
    CHECK_FALSE(fs::exists(tiny.path() / "runs"));
  }
  succeeded(run(tiny.path(), {"compare", "tiny.json", "--folder", "out"}));
  for (const std::vector<std::string>& folder :
       {std::vector<std::string>{"--resume", "out"}, {"--resume", "run.folder=out"}}) {
    check_failure(run(tiny.path(), with({"compare", "tiny.json", "--seeds", "0,1"}, folder)), 78,
                  {"error: out compares exact, vcas, not exact/seed0, vcas/seed0, exact/seed1, "
                   "vcas/seed1\n  hint: vcas compare --resume out goes on with what it has\n"});
  }
  check_failure(run(tiny.path(), {"compare", "tiny.json", "--resume"}), 66,
                {"error: runs/tiny-compare: No such file or directory\n"
                 "  hint: there is nothing to resume; start without --resume\n"});
  write_text(tiny.path() / "out/compare.json", R"({"runs": [{"name": "a"}], "variants": [{}]})");
  check_failure(run(tiny.path(), {"compare", "--resume", "out"}), 65,
                {"error: out/compare.json: "});
  write_text(tiny.path() / "out/compare.json",
             R"({"runs": [{"name": "a"}], "variants": [], "seeds": []})");
  check_failure(run(tiny.path(), {"compare", "--resume", "out"}), 65,
                {"error: out/compare.json: has no variants or no seeds\n"});
  check_failure(run(tiny.path(), {"compare", "--resume", "out", "--seeds", "0,1"}), 2,
                {"error: --resume FOLDER goes on with what is in that folder\n"});
}
