// vcas plan and vcas check.
#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/tools/program.h"
#include "tests/tools/tiny_text.h"

namespace fs = std::filesystem;

namespace {

Outcome of_program(const TinyRun& tiny, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin() + 1, "tiny.json");
  return run(tiny.path(), arguments);
}

nlohmann::json plan_of(const TinyRun& tiny, const std::vector<std::string>& arguments = {}) {
  return nlohmann::json::parse(
      succeeded(of_program(tiny, with({"plan", "--json"}, arguments))).out);
}

// Too large for any machine, in one forward.
const std::vector<std::string> kLarge = {"data.synthetic.shape=[1,256,256]",
                                         "model.width=256",
                                         "model.depth=64",
                                         "train.batch_size=256",
                                         "train.eval_batch=8",
                                         "train.steps=2"};

}  // namespace

TEST_CASE("plan: what it tells without training is what the run has") {
  const TinyRun tiny;
  const nlohmann::json plan = plan_of(tiny, {"--no-timing", "run.folder=out"});
  CHECK_FALSE(plan.contains("time"));
  CHECK_FALSE(fs::exists(tiny.path() / "out"));
  CHECK(plan["steps"] == 40);
  CHECK(plan["steps_per_epoch"] == 16);
  CHECK(plan["epochs"] == 2.5);
  CHECK(plan["train_items"] == 256);
  CHECK(plan["test_items"] == 64);
  CHECK(plan["memory"]["fits"] == true);

  succeeded(tiny.train({"run.folder=out"}));
  const nlohmann::json start = vcas::read_metrics(tiny.path() / "out/metrics.jsonl").front();
  CHECK(start["parameters"] == plan["parameters"]);
  std::int64_t parts = 0;
  for (const char* part : {"weights", "weight_gradients", "optimizer", "activations",
                           "activation_gradients", "scratch", "method", "rest"})
    parts += plan["memory"][part].get<std::int64_t>();
  const std::int64_t all = plan["memory"]["total"], rest = plan["memory"]["rest"];
  CHECK(parts == all);
  CHECK(start["planned_bytes"] <= all);
  CHECK(start["planned_bytes"] > all - rest);  // the rest has what evaluations need
  std::int64_t bytes = 0;
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    bytes += static_cast<std::int64_t>(fs::file_size(tiny.path() / "out/last" / file));
  const std::int64_t told = plan["checkpoints"]["bytes"];
  CHECK(told <= bytes);
  CHECK(bytes <= told + 16384);  // headers
  CHECK(plan["checkpoints"]["made"] == 2);
  CHECK(plan["checkpoints"]["disk_bytes"] == 3 * told);  // with the one that is being written
  CHECK(saved_steps(tiny.path() / "out").size() == 2);
}

TEST_CASE("plan: each evaluation may leave a checkpoint, as it may be the best") {
  const TinyRun tiny;
  const auto planned = [&](const std::string& every) {
    return plan_of(tiny, {"--no-timing", "train.eval_every=10",
                          "train.checkpoint_every=" + every})["checkpoints"];
  };
  CHECK(planned("15")["made"] == 5);  // 30 is one of both
  CHECK(planned("10")["made"] == 4);
  CHECK(planned("1")["made"] == 40);
  CHECK(planned("1")["kept"] == 4);  // the newest three and the best
  const nlohmann::json all = plan_of(
      tiny, {"--no-timing", "train.eval_every=10", "train.keep_checkpoints=9223372036854775807"});
  CHECK(all["checkpoints"]["kept"] == all["checkpoints"]["made"]);
  succeeded(tiny.train({"run.folder=out", "train.eval_every=10", "train.checkpoint_every=40",
                        "train.best_measure=loss"}));
  const std::size_t saved = saved_steps(tiny.path() / "out").size();
  CHECK(saved > 1);
  CHECK(saved <= planned("40")["kept"].get<std::size_t>());
}

TEST_CASE("plan: savings are those of the formula, for each ratio") {
  const TinyRun tiny;
  const nlohmann::json ratios =
      plan_of(tiny, {"--no-timing", "--ratio", "0.5", "--ratio", "1"})["ratios"];
  REQUIRE(ratios.size() == 2);
  // dX 1/2, dW 1/4 of a forward each, in place of 1.
  CHECK_THAT(ratios[0]["formula_backward_flops_saved"].get<double>(), WithinAbs(0.625, 1e-12));
  CHECK_THAT(ratios[0]["formula_flops_saved"].get<double>(), WithinAbs(1.25 / 3, 1e-12));
  CHECK_THAT(ratios[1]["formula_flops_saved"].get<double>(), WithinAbs(0, 1e-12));
  CHECK(of_program(tiny, {"plan", "--ratio", "0"}).code == 2);
}

TEST_CASE("plan: a method that cannot save anything says so, as in training") {
  const TinyRun tiny;
  const Outcome one = succeeded(of_program(tiny, {"plan", "--no-timing", "train.batch_size=1"}));
  CHECK(contains(one.err,
                 "warning: probes need two items in a micro-batch and there is one: all keep "
                 "ratios stay 1 and VCAS saves nothing\n  hint: raise train.micro_batch"));
  CHECK_FALSE(contains(succeeded(of_program(tiny, {"plan", "--no-timing"})).err, "saves nothing"));
}

TEST_CASE("plan: FLOPs of a step are the sum over its micro-batches") {
  const TinyRun tiny;
  const nlohmann::json whole = plan_of(tiny, {"--no-timing"})["flops"],
                       parts = plan_of(tiny, {"--no-timing", "train.micro_batch=4"})["flops"];
  CHECK(whole["step"] == whole["forward"].get<double>() + whole["backward"].get<double>());
  CHECK(whole == parts);

  const TinyText text;  // of different lengths
  const auto flops = [&](const std::string& setting) {
    const Outcome outcome =
        succeeded(text.vcas({"plan", "tiny.json", "--json", "--no-timing", setting}));
    return nlohmann::json::parse(outcome.out)["flops"];
  };
  CHECK(flops("train.micro_batch=8") == flops("train.micro_batch=2"));
}

TEST_CASE("plan: steps are timed, exact and at the ratios, and nothing is left behind") {
  const TinyRun tiny;
  const nlohmann::json plan = plan_of(tiny, {"--ratio", "0.5"});
  const nlohmann::json &time = plan["time"], &sampled = plan["ratios"][0];
  CHECK(time["batches"] == 11);
  CHECK(time["step_seconds"] > 0);
  CHECK(time["least_step_seconds"] <= time["step_seconds"]);
  const double step = time["step_seconds"], evaluation = time["evaluation_seconds"],
               whole = time["run_seconds"], sampled_step = sampled["step_seconds"];
  CHECK_THAT(whole, WithinRel(40 * step + 2 * evaluation, 1e-9));
  CHECK(sampled_step > 0);
  CHECK_THAT(sampled["run_seconds"].get<double>(),
             WithinRel(whole + 40 * (sampled_step - step), 1e-9));
  // The median of ratios lies between the ratios of the median to both extremes.
  CHECK(sampled["time_saved"] >= 1 - sampled_step / time["least_step_seconds"].get<double>());
  CHECK(sampled["time_saved"] <= 1 - sampled_step / time["most_step_seconds"].get<double>());
  CHECK(sampled["time_saved_interval"][0] <= sampled["time_saved"]);
  CHECK(sampled["time_saved_interval"][1] >= sampled["time_saved"]);
  CHECK_FALSE(fs::exists(tiny.path() / "runs"));
  CHECK(plan_of(tiny, {"train.steps=1"})["time"]["batches"] == 11);
  const Outcome text = succeeded(of_program(tiny, {"plan"}));
  for (const char* part :
       {"model        vit, ", "40: 2.5 epochs of 16, batch 16 in parts of 16",
        "gradients of activations", "of backward", "-41.7%", "-62.5%", "medians of 11 batches"})
    CHECK(contains(text.out, part));
}

TEST_CASE("plan: a run that does not fit gets the micro-batch that does") {
  const TinyRun tiny;
  std::vector<std::string> arguments = with({"plan", "--json"}, kLarge);
  const Outcome large = of_program(tiny, arguments);
  check_failure(large, 71, {"error: the run needs "});
  const nlohmann::json fitting = nlohmann::json::parse(large.out)["fitting"];
  REQUIRE_FALSE(fitting.is_null());
  const std::string setting = fitting["settings"][0];
  CHECK(contains(large.err, "  hint: with " + setting));
  const std::int64_t items = std::stoll(setting.substr(setting.find('=') + 1));
  CHECK(items < 256);
  arguments.insert(arguments.end(), {"--no-timing"});
  for (const std::string part : fitting["settings"]) arguments.push_back(part);
  const Outcome smaller = succeeded(of_program(tiny, arguments));
  CHECK(nlohmann::json::parse(smaller.out)["memory"]["total"] == fitting["bytes"]);

  check_failure(of_program(tiny, {"plan", "model.width=65536", "model.depth=200"}), 71,
                {"hint: not even train.micro_batch=1 fits"});
}

TEST_CASE("plan: what the run would refuse is refused") {
  const TinyRun tiny;
  check_failure(of_program(tiny, {"plan", "train.step=3"}), 78, {"did you mean"});
  CHECK(of_program(tiny, {"plan", "train.batch_size=1000"}).code ==
        tiny.train({"train.batch_size=1000"}).code);
  CHECK(run(tiny.path(), {"plan"}).code == 2);
  CHECK(run(tiny.path(), {"plan", "absent.json"}).code == 66);
}

TEST_CASE("validate: items are counted after limits") {
  const TinyRun tiny;
  CHECK(contains(tiny.train({"--validate", "data.limit=128", "data.eval_limit=16"}).out,
                 "data 128 train, 16 test"));
}

TEST_CASE("check: a model of the program passes, trained or not") {
  const TinyRun tiny;
  const Outcome outcome = of_program(tiny, {"check", "--draws", "16", "--steps", "5"});
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
  for (const char* part :
       {"after 5 exact steps; 16 draws of each kind, ratio 0.5",
        "(Bonferroni),\n         more often where rare draws have much weight: more --draws "
        "decide\n",
        "shifts   are noticed from ", "variance items, bernoulli: ", "variance rows, bernoulli: ",
        "slopes   exact gradient", "ok  no sampled gradient is shifted so far\n"})
    CHECK(contains(outcome.out, part));
  CHECK_FALSE(contains(outcome.out, "not checked"));
  CHECK(contains(of_program(tiny, {"check", "--draws", "2", "--ratio", "0.2"}).out,
                 "more often where rare draws have much weight, as at so small a ratio: more "
                 "--draws decide\n"));
  CHECK_FALSE(fs::exists(tiny.path() / "runs"));
}

TEST_CASE("check: it shows the worst tensors, or all, and what it leaves out") {
  const TinyRun tiny;
  const auto lines = [&](const std::vector<std::string>& arguments) {
    const Outcome outcome = succeeded(of_program(tiny, arguments));
    std::ptrdiff_t of_table = 0;
    for (const char* kind : {"items, ", "rows, ", "both, "})
      for (std::size_t at = outcome.out.find(kind); at != std::string::npos;
           at = outcome.out.find(kind, at + 1))
        of_table += at == 0 || outcome.out[at - 1] == '\n';
    return of_table;
  };
  const std::int64_t tensors = plan_of(tiny, {"--no-timing"})["tensors"];
  CHECK(lines({"check", "--draws", "2"}) == 10);
  CHECK(lines({"check", "--draws", "2", "--all"}) == 7 * tensors);
  const Outcome partly = of_program(
      tiny, {"check", "--draws", "2", "optimizer.max_gradient_norm=1", "train.micro_batch=8"});
  check_contains(partly.out, {"not checked: clipping",
                              "not checked: micro-batches after the first, of 8 items"});
}

TEST_CASE("check: more draws notice smaller shifts, and draws are those of vcas") {
  const TinyRun tiny;
  const auto least = [&](const char* draws) {
    const Outcome outcome =
        succeeded(of_program(tiny, {"check", "--draws", draws, "method.type=selective_backprop"}));
    CHECK(contains(outcome.out, "not checked: draws of method.type \"selective_backprop\""));
    const std::string text = "shifts   are noticed from ";
    return std::stod(outcome.out.substr(outcome.out.find(text) + text.size()));
  };
  const double few = least("4"), many = least("64");
  CHECK(few > 4 * many);
  CHECK(many > 1);
}

TEST_CASE("check: with SampleF, draws before the forward too") {
  const TinyRun tiny;
  const Outcome outcome =
      of_program(tiny, {"check", "--draws", "16", "--all", "train.micro_batch=8",
                        "method.forward=true", "method.forward_ratio=0.5"});
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
  CHECK(contains(outcome.out, "\nbefore the forward, systematic "));
  check_failure(of_program(tiny, {"check", "train.batch_size=1", "train.micro_batch=1",
                                  "method.forward=true", "method.forward_ratio=0.5"}),
                78, {"method.forward"});
}

TEST_CASE("check: more steps than the run has are refused") {
  const TinyRun tiny;
  check_failure(of_program(tiny, {"check", "--steps", "41"}), 2,
                {"--steps is 41, and the run has 40 steps"});
  CHECK(of_program(tiny, {"check", "--draws", "1"}).code == 2);
}
