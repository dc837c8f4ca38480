#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/files.h"
#include "core/metrics.h"
#include "core/safetensors.h"
#include "tests/support/catch.h"
#include "tests/support/fewer_cases.h"
#include "tests/tools/program.h"

namespace fs = std::filesystem;

namespace {

double mean_loss(const fs::path& metrics, std::int64_t first, std::int64_t last) {
  double sum = 0;
  for (const nlohmann::json& line : vcas::read_metrics(metrics))
    if (line["event"] == "train" && line["step"] >= first && line["step"] <= last)
      sum += line["loss"].get<double>();
  return sum / static_cast<double>(last - first + 1);
}

}  // namespace

TEST_CASE("training lowers the loss and leaves a complete run behind") {
  const TinyRun tiny;
  const Outcome outcome = succeeded(tiny.train({"train.steps=200", "run.folder=out"}));
  check_contains(outcome.out, {"done in ", "best checkpoint-"});
  check_contains(outcome.err,
                 {"vcas-train 0.", " · seed 0 · cpu (1 threads)\n"});  // the device of "auto"
  CHECK_FALSE(contains(outcome.err, "\x1b"));

  const fs::path folder = tiny.path() / "out";
  CHECK(mean_loss(folder / "metrics.jsonl", 181, 200) <
        0.7 * mean_loss(folder / "metrics.jsonl", 1, 20));
  for (const char* name : {"config.json", "metrics.jsonl", "log.txt", "best", "last"})
    CHECK(fs::exists(folder / name));
  CHECK(fs::read_symlink(folder / "last") == "checkpoint-200");
  vcas::check_manifest(folder / "last");
  CHECK(saved_steps(folder).size() <= 4);  // the newest three and the best

  const std::vector<nlohmann::json> metrics = vcas::read_metrics(folder / "metrics.jsonl");
  CHECK(metrics.front()["event"] == "start");
  CHECK(metrics.back()["event"] == "end");
  CHECK(metrics.back()["flops_saved"].is_number());
  const auto count = [&](const char* event) {
    return std::count_if(metrics.begin(), metrics.end(),
                         [&](const nlohmann::json& line) { return line["event"] == event; });
  };
  CHECK(count("train") == 200);
  CHECK(count("variance") == 40);
  CHECK(count("eval") == 10);
}

TEST_CASE("metrics have one form in a run and a comparison, and the start says how to read them") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out"}));
  succeeded(run(tiny.path(), {"compare", "tiny.json", "--folder", "twins"}));
  const auto keys = [&](const char* folder) {
    std::map<std::string, std::set<std::string>> of_event;
    for (const nlohmann::json& line : vcas::read_metrics(tiny.path() / folder / "metrics.jsonl"))
      for (const auto& [key, value] : line.items()) of_event[line["event"]].insert(key);
    of_event.erase("warning");  // that no time is saved depends on the machine
    return of_event;
  };
  const auto events = keys("out");
  CHECK(keys("twins/vcas") == events);
  std::string doc = content(fs::path(VCAS_SOURCE_DIR) / "docs/metrics.md");
  for (const auto& [event, names] : events)
    for (const std::string& name : names) {
      CAPTURE(event, name);
      CHECK(names.count("time") == 1);
      CHECK(contains(doc, "`" + name + "`"));
    }

  const std::vector<nlohmann::json> lines = vcas::read_metrics(tiny.path() / "out/metrics.jsonl");
  const nlohmann::json& start = lines.front();
  CHECK(start["time"] < lines.back()["time"]);
  CHECK_THAT(start["date"].get<std::string>(), Catch::Matchers::Matches("20..-..-..T..:..:..Z"));
  CHECK(start["host"].get<std::string>() != "");
  CHECK(start["device"] == "cpu");  // that of "auto"
  CHECK(start["precision"] == "f32");
  CHECK(start["threads"] == 1);
  CHECK(start["seed"] == 0);
  CHECK(start["gates"] == nlohmann::json({"vit.encoder.layer.0", "vit.encoder.layer.1"}));
  CHECK(start["linears"].size() == 8);
  CHECK(start["linears"][7] == "vit.encoder.layer.1.output.dense");
  CHECK(start["config"]["run"]["folder"] == "out");
  // A step's share of what was counted of all steps.
  nlohmann::json flops;
  {
    const Outcome compared = run(tiny.path(), {"compare", "--resume", "twins", "--json"});
    flops = nlohmann::json::parse(compared.out)["runs"][0]["flops"];
  }
  for (const char* pass : {"forward", "backward"})
    CHECK_THAT(start["exact_step_flops"][pass].get<double>(),
               WithinRel(flops[pass].get<double>() / 40, 1e-9));
}

TEST_CASE("the settings of a run are JSON, and each line of its log has a time") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out", "seed=3"}));
  const fs::path out = tiny.path() / "out";
  CHECK(nlohmann::json::parse(content(out / "config.json"))["seed"] == 3);
  check_contains(content(out / "config.origins.txt"), {"\"seed\": 3,", "// --set"});
  std::ifstream log(out / "log.txt");
  int lines = 0;
  for (std::string line; std::getline(log, line); ++lines) {
    CAPTURE(line);
    CHECK_THAT(line, Catch::Matchers::Matches("20..-..-..T..:..:..Z  .*"));
  }
  CHECK(lines > 8);

  // Earlier runs have comments in it.
  fs::rename(out / "config.origins.txt", out / "config.json");
  succeeded(run(tiny.path(), {"vcas-train", "-c", "out/config.json", "--validate"}));
}

TEST_CASE("an evaluation that a signal cut short is noted once, whatever is killed then") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out", "train.checkpoint_every=20"}));
  // As if a signal had stopped the evaluation of step 20, and a kill the resumed run after it.
  const fs::path out = tiny.path() / "out";
  forget_after(out, 20);
  const fs::path state = out / "checkpoint-20/trainer_state.json";
  nlohmann::json saved = nlohmann::json::parse(content(state));
  saved["evaluated"] = 0;
  saved["best"]["step"] = 0;
  write_text(state, saved.dump());
  vcas::write_manifest(out / "checkpoint-20");
  succeeded(tiny.train({"run.folder=out", "--resume"}));
  std::map<std::int64_t, int> evaluations;
  for (const nlohmann::json& line : events_of(out / "metrics.jsonl", "eval"))
    ++evaluations[line["step"]];
  CHECK(evaluations == std::map<std::int64_t, int>{{20, 1}, {40, 1}});
}

TEST_CASE("the end of a run says what was saved, whatever the probes") {
  const std::string setting =
      GENERATE("method.probe=in_place", "method.probe=separate", "method.act_ratio=[0.25]");
  const TinyRun tiny;
  CAPTURE(setting);
  const Outcome outcome = succeeded(tiny.train({setting, "run.folder=out"}));
  const nlohmann::json end = tiny.end_of("out");
  const std::string unknown = " (time against exact is not known; vcas compare measures it)";
  if (!contains(setting, "in_place")) {  // no step is an exact one
    CHECK(end["time_saved"].is_null());
    CHECK(end["time_saved_interval"].is_null());
    CHECK(contains(outcome.out, unknown));
    return;
  }
  // How much, and whether that is known yet, a loaded machine does not say.
  const double low = end["time_saved_interval"].at(0), high = end["time_saved_interval"].at(1);
  CHECK(low <= high);
  CHECK(high < 1);
  if (end["time_saved"].is_null()) {
    CHECK(contains(outcome.out, unknown));
  } else {
    const double saved = end["time_saved"];
    CHECK(low <= saved);
    CHECK(saved <= high);
    CHECK(low * high > 0);
    CHECK(high - low <= 0.06);
    check_contains(outcome.out, {"exact would take about", "; time "});
  }
}

TEST_CASE("an exact run's time is known from a mean ratio of each probe, kept by checkpoints") {
  const TinyRun tiny;
  const fs::path out = tiny.path() / "out";
  const auto ratios = [&](const char* folder) {
    return nlohmann::json::parse(
               content(out / folder / "trainer_state.json"))["session"]["totals"]["probed_ratios"]
        .get<std::vector<double>>();
  };
  const auto measured = [&](std::int64_t last) {  // as the log of steps has it
    std::map<std::int64_t, double> of_step;
    std::vector<double> of_probe;
    for (const nlohmann::json& line : vcas::read_metrics(out / "metrics.jsonl")) {
      const std::int64_t step = line["step"];
      if (line["event"] == "train")
        of_step[step] =
            line["seconds"]["backward"].get<double>() / line["seconds"]["forward"].get<double>();
      if (line["event"] == "variance" && step > last)
        of_probe.push_back((of_step[step - 1] + of_step[step]) / 2);
    }
    std::sort(of_probe.begin(), of_probe.end());
    return of_probe;
  };
  const auto check_same = [](const std::vector<double>& got, const std::vector<double>& want) {
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) CHECK_THAT(got[i], WithinRel(want[i], 1e-9));
  };
  succeeded(tiny.train({"run.folder=out"}));
  CHECK(ratios("checkpoint-20").size() == 4);
  check_same(ratios("last"), measured(0));
  CHECK(ratios("last").size() == 8);

  forget_after(out, 20);
  succeeded(tiny.train({"run.folder=out", "--resume"}));
  check_same(ratios("last"), measured(0));

  // A checkpoint that lacks them, as earlier ones do, goes on with those of later probes.
  forget_after(out, 20);
  const fs::path state = out / "checkpoint-20/trainer_state.json";
  nlohmann::json saved = nlohmann::json::parse(content(state));
  saved["session"]["totals"].erase("probed_ratios");
  saved["session"]["totals"]["exact_backwards"] = {1.5, 1.5};
  write_text(state, saved.dump());
  vcas::write_manifest(out / "checkpoint-20");
  succeeded(tiny.train({"run.folder=out", "--resume"}));
  check_same(ratios("last"), measured(20));
}

TEST_CASE("the training loss at the end is that of the last tenth of the steps") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out", "train.checkpoint_every=7"}));
  const fs::path metrics = tiny.path() / "out/metrics.jsonl";
  const double loss = vcas::read_metrics(metrics).back()["train_loss"];
  CHECK_THAT(loss, WithinRel(mean_loss(metrics, 37, 40), 1e-6));

  // However few lines the log has, and also when a resume cuts the tenth in two.
  succeeded(tiny.train({"run.folder=rare", "train.log_every=30", "train.checkpoint_every=38",
                        "train.keep_checkpoints=9"}));
  const fs::path rare = tiny.path() / "rare";
  CHECK(vcas::read_metrics(rare / "metrics.jsonl").back()["train_loss"] == loss);
  forget_after(rare, 38);
  succeeded(tiny.train({"run.folder=rare", "train.log_every=30", "--resume"}));
  CHECK(vcas::read_metrics(rare / "metrics.jsonl").back()["train_loss"] == loss);
}

TEST_CASE("a resumed run ends with the bits of an uninterrupted one") {
  const std::string settings = GENERATE("method.type=exact", "method.probe=in_place",
                                        "method.probe=separate", "method.selection=bernoulli");
  const std::int64_t step = GENERATE(14, 20);
  const TinyRun tiny;
  CAPTURE(settings, step);
  const std::vector<std::string> arguments = {
      settings, "run.folder=out", "train.checkpoint_every=7", "train.keep_checkpoints=100"};
  succeeded(tiny.train(arguments));
  const std::string weights = tiny.weights("out");
  const fs::path folder = tiny.path() / "out";
  const std::string optimizer = content(folder / "last" / "optimizer.safetensors");
  const auto counters = [&] {
    nlohmann::json state = nlohmann::json::parse(content(folder / "last" / "trainer_state.json"));
    state["session"].erase("totals");  // seconds are never twice the same
    return state;
  };
  const nlohmann::json before = counters();

  // Saves wait for the end of a probe, so the step is the next one at which it is over.
  std::int64_t from = 0;
  for (const std::int64_t saved : saved_steps(folder))
    if (saved >= step && from == 0) from = saved;
  forget_after(folder, from);
  std::vector<std::string> again = arguments;
  again.push_back("--resume");
  const Outcome resumed = succeeded(tiny.train(again));
  CHECK(contains(resumed.err, "resuming out/checkpoint-" + std::to_string(from) + " at step "));
  CHECK(tiny.weights("out") == weights);
  CHECK(content(folder / "last" / "optimizer.safetensors") == optimizer);
  CHECK(counters() == before);

  std::int64_t steps = 0;
  for (const nlohmann::json& line : events_of(folder / "metrics.jsonl", "train"))
    CHECK(line["step"] == ++steps);
  CHECK(steps == 40);
}

TEST_CASE("algorithms that were chosen by time stay with a run", "[device]") {
  const TinyRun tiny;
  const std::vector<std::string> arguments = {"device=emu", "tune_products=true", "run.folder=out",
                                              "train.steps=4", "train.checkpoint_every=2"};
  succeeded(tiny.train(arguments));
  const fs::path out = tiny.path() / "out";
  const auto state_of = [&](const char* checkpoint) {
    return nlohmann::json::parse(content(out / checkpoint / "trainer_state.json"));
  };
  nlohmann::json state = state_of("checkpoint-2");
  nlohmann::json& products = state["session"]["products"];
  REQUIRE(products.size() > 5);
  for (const auto& [product, algorithm] : products.items()) {
    CHECK(product.starts_with("emu: product of "));
    CHECK(algorithm == "the only one");
  }
  // A run may go on at another machine, which has choices of its own.
  products["another GPU: a product"] = "its algorithm";
  write_text(out / "checkpoint-2/trainer_state.json", state.dump());
  vcas::write_manifest(out / "checkpoint-2");
  forget_after(out, 2);
  std::vector<std::string> again = arguments;
  again.push_back("--resume");
  succeeded(tiny.train(again));
  const nlohmann::json later = state_of("last")["session"]["products"];
  for (const auto& [product, algorithm] : products.items()) CHECK(later.at(product) == algorithm);

  products = {"not", "named"};
  write_text(out / "checkpoint-2/trainer_state.json", state.dump());
  vcas::write_manifest(out / "checkpoint-2");
  forget_after(out, 2);
  check_failure(tiny.train(again), 65,
                {"error: out/checkpoint-2/trainer_state.json: the state of the run: "});
}

TEST_CASE("a run in bf16 saves weights of f32 and is resumed bit for bit", "[device]") {
  const TinyRun tiny;
  std::vector<std::string> arguments = {"device=emu",
                                        "precision=bf16",
                                        "run.folder=out",
                                        "train.steps=16",
                                        "train.batch_size=4",
                                        "train.eval_every=8",
                                        "data.synthetic.eval_items=8"};
  succeeded(tiny.train(arguments));
  const std::string weights = tiny.weights("out");
  CHECK(vcas::SafetensorsFile(tiny.path() / "out/last/model.safetensors").tensors()[0].dtype ==
        vcas::StoredType::kF32);
  forget_after(tiny.path() / "out", saved_steps(tiny.path() / "out").front());
  arguments.push_back("--resume");
  succeeded(tiny.train(arguments));
  CHECK(tiny.weights("out") == weights);

  // Weights are f32, so another precision reads them; that is another run.
  arguments = {"device=cpu", "precision=f32", "run.folder=out", "--resume"};
  check_failure(tiny.train(arguments), 78, {"precision"});
  succeeded(run(tiny.path(), {"eval", "--model", "out/last", "device=cpu", "precision=f32"}));
}

TEST_CASE("a device that is a step behind trains and reports as one that is not", "[device]") {
  const TinyRun tiny;
  const auto events = [&](const std::string& device) {
    succeeded(tiny.train({"device=" + device, "run.folder=" + device.substr(0, 3), "train.steps=11",
                          "train.batch_size=4", "train.eval_every=4", "train.checkpoint_every=3",
                          "data.synthetic.eval_items=8", "train.keep_checkpoints=9",
                          "method.probe=separate"}));
    std::string out;
    for (nlohmann::json line :
         vcas::read_metrics(tiny.path() / device.substr(0, 3) / "metrics.jsonl")) {
      if (line["event"] == "start" || line["event"] == "end") continue;
      if (contains(line.dump(), "saves no time") || contains(line.dump(), "of seconds")) continue;
      for (const char* clock :
           {"time", "seconds", "train_seconds", "time_saved", "time_saved_interval"})
        line.erase(clock);
      out += line.dump() + "\n";
    }
    return out;
  };
  // The emulator says that nothing has arrived yet, a pair that is compared has it at once.
  const std::string behind = events("emu"), at_once = events("check:emu,emu");
  CHECK(behind == at_once);
  CHECK(contains(behind, "\"event\":\"variance\""));
  CHECK(saved_steps(tiny.path() / "emu") == saved_steps(tiny.path() / "che"));
  CHECK(tiny.weights("emu") == tiny.weights("che"));
}

TEST_CASE("probes and ratios of one leave the weights as exact training does") {
  const std::string probe = GENERATE("in_place", "separate");
  const TinyRun tiny;
  succeeded(tiny.train({"method.type=exact", "run.folder=exact"}));
  // Ratios that no probe moves: s and nu have steps of nothing.
  succeeded(tiny.train({"method.s_step=0", "method.weight_multiplier=1", "method.probe=" + probe,
                        "run.folder=sampled"}));
  CHECK(tiny.weights("exact") == tiny.weights("sampled"));
  REQUIRE(
      tiny.train({"method.act_ratio=[1.0]", "method.weight_ratio=[1.0]", "run.folder=ones"}).code ==
      0);
  CHECK(tiny.weights("exact") == tiny.weights("ones"));
}

TEST_CASE("four micro-batches of 8 are one batch of 32") {
  const TinyRun tiny;
  const std::vector<std::string> common = {"method.type=exact", "model.dropout=0",
                                           "optimizer.name=sgd", "train.batch_size=32",
                                           "schedule.learning_rate=0.1"};
  for (const char* micro : {"0", "8"}) {
    std::vector<std::string> arguments = common;
    arguments.push_back(std::string("train.micro_batch=") + micro);
    arguments.push_back(std::string("run.folder=out") + micro);
    succeeded(tiny.train(arguments));
  }
  const vcas::SafetensorsFile whole(tiny.path() / "out0/last/model.safetensors");
  const vcas::SafetensorsFile parts(tiny.path() / "out8/last/model.safetensors");
  for (const vcas::StoredTensor& tensor : whole.tensors()) {
    INFO(tensor.name);
    const std::vector<float> a = whole.read_floats(tensor);
    const std::vector<float> b = parts.read_floats(*parts.find(tensor.name));
    for (std::size_t i = 0; i < a.size(); ++i) REQUIRE(std::abs(a[i] - b[i]) <= 1e-5);
  }
}

TEST_CASE("a signal saves, and the run goes on as if there had been none") {
  const TinyRun tiny;
  const std::vector<std::string> settings = {"--config", "tiny.json", "train.steps=2000",
                                             "train.eval_every=1000"};
  const std::vector<std::string> whole = with({"vcas-train", "run.folder=whole"}, settings);
  succeeded(run(tiny.path(), whole));

  for (const int signal : vcas::cases_to_run({SIGTERM, SIGINT, SIGUSR2})) {
    INFO("signal " << signal);
    fs::remove_all(tiny.path() / "cut");
    std::vector<std::string> cut = with({"vcas-train", "run.folder=cut"}, settings);
    const Process process(tiny.path(), cut);
    REQUIRE(wait_for_lines(tiny.path() / "cut/metrics.jsonl", 30));
    process.signal(signal);
    const Outcome stopped = process.wait();
    check_failure(stopped, 75, {"stopped by SIG", "  hint: go on with --resume"});
    CHECK_FALSE(contains(stopped.err, "error:"));

    cut.push_back("--resume");
    succeeded(run(tiny.path(), cut));
    CHECK(tiny.weights("cut") == tiny.weights("whole"));
  }
}

TEST_CASE("SIGUSR1 saves and the run goes on") {
  const TinyRun tiny;
  const Process process(tiny.path(), {"vcas-train", "--config", "tiny.json", "train.steps=3000",
                                      "train.eval_every=3000", "run.folder=out"});
  REQUIRE(wait_for_lines(tiny.path() / "out/metrics.jsonl", 30));
  process.signal(SIGUSR1);
  succeeded(process.wait());
  CHECK(saved_steps(tiny.path() / "out").size() == 2);
}

TEST_CASE("divergence leaves a note and the last checkpoint") {
  const TinyRun tiny;
  check_failure(
      tiny.train({"schedule.learning_rate=1e30", "schedule.kind=constant", "method.type=exact",
                  "train.checkpoint_every=1", "run.folder=out"}),
      70,
      {"error: step 2: ", "weights unchanged", "saved out/crash-2.json; last good checkpoint-1",
       "  hint: try a lower schedule.learning_rate"});
  vcas::check_manifest(tiny.path() / "out/last");
  CHECK(tiny.json("out/crash-2.json")["step"] == 2);
  CHECK(contains(run(tiny.path(), {"report", "out"}).err,
                 "step 2 was not finite: vcas replay names the operation"));
  const Outcome evaluated =
      tiny.train({"schedule.learning_rate=1e30", "schedule.kind=constant", "method.type=exact",
                  "train.checkpoint_every=1", "train.eval_every=1", "run.folder=evaluated"});
  check_failure(evaluated, 70, {"error: evaluation at step 1: loss is "});
  CHECK(contains(run(tiny.path(), {"report", "evaluated"}).err,
                 "the evaluation of step 1 was not finite: vcas replay names the operation"));
}

TEST_CASE("damaged and unfinished checkpoints are passed over and named") {
  const TinyRun tiny;
  const std::vector<std::string> arguments = {"run.folder=out"};
  succeeded(tiny.train(arguments));
  const fs::path folder = tiny.path() / "out";
  fs::create_directory(folder / "checkpoint-99.tmp");
  fs::resize_file(folder / "checkpoint-40/model.safetensors", 100);
  const Outcome resumed = succeeded(tiny.train({"run.folder=out", "--resume"}));
  check_contains(resumed.err, {"ignored  checkpoint-99.tmp: not written to its end",
                               "ignored  checkpoint-40: ", "resuming out/checkpoint-20"});

  fs::resize_file(folder / "checkpoint-40/model.safetensors", 100);
  const Outcome evaluated = succeeded(run(tiny.path(), {"eval", "--model", "out"}));
  CHECK(contains(evaluated.out, "checkpoint-20"));
  CHECK(contains(evaluated.err, "warning: ignored checkpoint-40: "));
}

TEST_CASE("resuming with other settings is refused, a fork is not") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out"}));
  check_message(
      run(tiny.path(), {"vcas-train", "--resume", "out/checkpoint-20", "--set",
                        "schedule.learning_rate=0.01", "--set", "seed=3"}),
      78,
      "error: seed differs from the checkpoint (0 -> 3)\n"
      "  schedule.learning_rate differs from the checkpoint (0.003 -> 0.01); this run would not "
      "be an exact continuation\n"
      "  hint: add --resume-mode=fork to start a new run from these weights and this optimizer "
      "state\n");
  // Settings of what is written, not of what is trained, are free.
  succeeded(tiny.train({"run.folder=out", "--resume", "train.log_every=5"}));
  const Outcome fork = succeeded(
      run(tiny.path(), {"vcas-train", "--resume", "out/checkpoint-20", "--resume-mode=fork",
                        "schedule.learning_rate=0.01", "run.folder=fork"}));
  CHECK(fs::exists(tiny.path() / "fork/checkpoint-40"));
}

TEST_CASE("a fork of a run with fixed ratios starts from the ratios of its own settings") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out", "method.act_ratio=[0.25]"}));
  succeeded(run(tiny.path(), {"vcas-train", "--resume", "out/checkpoint-20", "--resume-mode=fork",
                              "method.act_ratio=[]", "method.s_step=0",
                              "method.weight_multiplier=1", "run.folder=fork"}));
  int probes = 0;
  for (const nlohmann::json& line : events_of(tiny.path() / "fork/metrics.jsonl", "variance")) {
    ++probes;
    CHECK(line["act_ratio"] == nlohmann::json({1.0, 1.0}));
    CHECK(line["weight_ratio"] == nlohmann::json(std::vector<double>(8, 1.0)));
  }
  CHECK(probes == 4);
}

TEST_CASE("a folder holds one run, and another one only when told to") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out"}));
  check_failure(tiny.train({"run.folder=out"}), 73,
                {"error: out: the folder of another run", "--overwrite"});
  write_text(tiny.path() / "out/notes.txt", "of the user");
  succeeded(tiny.train({"run.folder=out", "--overwrite", "train.steps=10"}));
  CHECK(saved_steps(tiny.path() / "out") == std::vector<std::int64_t>{10});
  CHECK(content(tiny.path() / "out/notes.txt") == "of the user");

  // "out/last/" is a checkpoint of "out", and no folder for another run.
  succeeded(run(tiny.path(), {"vcas-train", "--resume", "out/last/"}));
  succeeded(run(tiny.path(), {"eval", "--model", "out/last/"}));
  check_failure(tiny.train({"run.folder=out/last", "--overwrite"}), 73,
                {"out/last: is a checkpoint, not the folder of a run"});

  fs::create_directory(tiny.path() / "mine");
  write_text(tiny.path() / "mine/thesis.tex", "years of work");
  const Outcome spared = tiny.train({"run.folder=mine", "--overwrite"});
  check_failure(spared, 73, {"not the folder of a run"});
  CHECK(fs::exists(tiny.path() / "mine/thesis.tex"));
  CHECK(tiny.train({"run.folder=mine"}).err == spared.err);
}

TEST_CASE("a second run in the same folder at the same time is refused") {
  const TinyRun tiny;
  const std::vector<std::string> arguments = {
      "vcas-train",    "--config", "tiny.json", "train.steps=1000000", "train.eval_every=1000000",
      "run.folder=out"};
  const Process first(tiny.path(), arguments);
  REQUIRE(wait_for_lines(tiny.path() / "out/metrics.jsonl", 10));
  const TinyRun other;  // its output files are elsewhere
  write_text(other.path() / "tiny.json", content(tiny.path() / "tiny.json"));
  const std::string folder = (tiny.path() / "out").string();
  const Outcome second = other.train({"run.folder=" + folder, "--overwrite"});
  first.signal(SIGTERM);
  CHECK(first.wait().code == 75);
  check_failure(second, 73, {"another run is using this folder"});
}

TEST_CASE("an MLP trains with every optimizer and schedule") {
  const TinyRun tiny;
  for (const char* optimizer : {"adam", "adamw", "sgd"})
    for (const char* kind : {"constant", "linear", "cosine"}) {
      CAPTURE(optimizer, kind);
      succeeded(
          tiny.train({"model.type=mlp", "model.dropout=0", "data.synthetic.shape=[12]",
                      std::string("optimizer.name=") + optimizer,
                      std::string("schedule.kind=") + kind, "run.folder=out", "--overwrite"}));
    }
}
