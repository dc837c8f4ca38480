// `vcas compare`: two runs in turns, whose folders are those of any run.
#include <nlohmann/json.hpp>

#include "core/metrics.h"
#include "tests/support/catch.h"
#include "tests/support/fewer_cases.h"
#include "tests/tools/comparison.h"
#include "tests/tools/program.h"

namespace fs = std::filesystem;

TEST_CASE("a comparison that was stopped goes on to the numbers of one that was not") {
  const TinyRun tiny;
  const std::vector<std::string> whole = {"compare",
                                          "tiny.json",
                                          "--folder",
                                          "whole",
                                          "--json",
                                          "train.steps=1000",
                                          "train.eval_every=100",
                                          "train.keep_checkpoints=1"};
  std::vector<std::string> cut = whole;
  cut[3] = "cut";
  const Outcome uninterrupted = succeeded(run(tiny.path(), whole));
  for (const int signal : vcas::cases_to_run({SIGKILL, SIGTERM, SIGINT})) {
    INFO("signal " << signal);
    fs::remove_all(tiny.path() / "cut");
    {
      const Process process(tiny.path(), cut);
      REQUIRE(wait_for_lines(tiny.path() / "cut/vcas/metrics.jsonl", 200));
      process.signal(signal);
      const Outcome stopped = process.wait();
      INFO(stopped.err);
      if (signal == SIGKILL) {
        REQUIRE(stopped.code == 128 + SIGKILL);
      } else {
        REQUIRE(stopped.code == 75);
        CHECK_FALSE(contains(stopped.err, "error:"));
        for (const char* name : {"exact", "vcas"})
          check_contains(stopped.err, {std::string("; saved cut/") + name + "/checkpoint-",
                                       "\n  hint: go on with --resume\n"});
        // The same steps, without what is not known yet.
        const nlohmann::json json = nlohmann::json::parse(stopped.out);
        CHECK(json["runs"][0]["steps"].get<int>() >= 20);
        CHECK(json["runs"][0]["steps"] == json["runs"][1]["steps"]);
        CHECK(json["runs"][0]["train_loss"].is_null());
        CHECK(json["saved"]["flops"].is_number());
      }
    }
    const Outcome resumed = succeeded(run(tiny.path(), {"compare", "--resume", "cut", "--json"}));
    CHECK(untimed(resumed.out) == untimed(uninterrupted.out));
    for (const char* name : {"exact", "vcas"}) {
      const std::string folder = std::string("cut/") + name;
      CHECK(contains(resumed.err, std::string(name) + ": resuming " + folder + "/checkpoint-"));
      CHECK(tiny.weights(folder) == tiny.weights(std::string("whole/") + name));
      std::int64_t steps = 0;
      for (const nlohmann::json& line : events_of(tiny.path() / folder / "metrics.jsonl", "train"))
        CHECK(line["step"] == ++steps);
      CHECK(steps == 1000);
      succeeded(run(tiny.path(), {"eval", "--model", folder + "/best"}));
      succeeded(run(tiny.path(), {"eval", "--model", folder}));
    }
    CHECK(untimed(content(tiny.path() / "cut/compare.json")) == untimed(resumed.out));

    // What a kill leaves of weights that were being removed.
    const fs::path rubbish = tiny.path() / "cut/vcas/checkpoint-900.tmp";
    fs::create_directory(rubbish);
    succeeded(run(tiny.path(), {"compare", "--resume", "cut"}));
    CHECK_FALSE(fs::exists(rubbish));
  }
}

TEST_CASE("comparisons get folders of their own, and --resume the newest") {
  const TinyRun tiny;
  succeeded(run(tiny.path(), {"compare", "tiny.json", "train.steps=20"}));
  const Outcome second = succeeded(tiny.train({"--compare", "exact", "train.steps=40"}));
  for (const char* folder : {"runs/tiny-compare", "runs/tiny-compare-2"})
    CHECK(fs::exists(tiny.path() / folder / "vcas/last/model.safetensors"));
  const Outcome resumed =
      succeeded(run(tiny.path(), {"compare", "--resume", "tiny.json", "train.steps=40"}));
  CHECK(resumed.err == "");  // all was done
  CHECK(resumed.out == second.out);
  CHECK(tiny.train({"--compare", "exact", "train.steps=40", "--resume"}).out == second.out);

  check_failure(run(tiny.path(), {"compare", "--resume", "runs/tiny-compare", "seed=1"}), 78,
                {"error: seed differs from the checkpoint (0 -> 1); this run would not be an exact "
                 "continuation\n  hint: start another comparison, without --resume\n"});
  check_failure(run(tiny.path(), {"compare", "tiny.json", "--folder", "runs/tiny-compare"}), 73,
                {"error: runs/tiny-compare: the folder of another run\n"});
  CHECK(contains(
      run(tiny.path(), {"compare", "tiny.json", "--folder", "runs/tiny-compare/vcas"}).err,
      "not the folder of a comparison (it has no compare.json), so it is not overwritten"));
  check_failure(run(tiny.path(), {"compare", "--resume", "runs"}), 66,
                {"error: runs: not the folder of a comparison, which has compare.json\n"});
  check_failure(run(tiny.path(), {"eval", "--model", "runs/tiny-compare"}), 66,
                {"error: runs/tiny-compare: a comparison, no complete checkpoint\n"
                 "  hint: each run has a folder in it, such as runs/tiny-compare/exact\n"});
  check_message(run(tiny.path(), {"replay", "runs/tiny-compare"}), 66,
                "error: runs/tiny-compare: a comparison, no run\n"
                "  hint: each run has a folder in it, such as runs/tiny-compare/exact\n");

  succeeded(run(tiny.path(), {"compare", "tiny.json", "train.steps=20", "--overwrite"}));
  CHECK(saved_steps(tiny.path() / "runs/tiny-compare/exact") == std::vector<std::int64_t>{20});
  CHECK_FALSE(fs::exists(tiny.path() / "runs/tiny-compare-3"));
}

TEST_CASE("a comparison that cannot begin leaves no folder") {
  const TinyRun tiny;
  write_text(tiny.path() / "wide.json", content(tiny.path() / "tiny.json"));
  const Outcome outcome =
      run(tiny.path(), {"compare", "tiny.json", "wide.json", "method.act_ratio=[0.1, 0.2, 0.3]"});
  CHECK(outcome.code == 78);
  CHECK_FALSE(fs::exists(tiny.path() / "runs"));
}

TEST_CASE("a comparison that fails before it has saved leaves the one that it was to replace") {
  const TinyRun tiny;
  const std::vector<std::string> compare = {"compare", "tiny.json", "--folder", "out"};
  const auto with = [&](const std::vector<std::string>& more) { return ::with(compare, more); };
  succeeded(run(tiny.path(), compare));
  const std::string numbers = content(tiny.path() / "out/compare.json");
  const std::string weights = tiny.weights("out/vcas");
  write_text(tiny.path() / "out/vcas/notes.txt", "mine");
  const auto is_as_before = [&] {
    return content(tiny.path() / "out/compare.json") == numbers &&
           tiny.weights("out/vcas") == weights && fs::exists(tiny.path() / "out/exact/last") &&
           content(tiny.path() / "out/vcas/notes.txt") == "mine" &&
           !fs::exists(tiny.path() / "out/replaced");
  };
  const Outcome failed = run(
      tiny.path(), with({"schedule.learning_rate=1e30", "schedule.kind=constant", "--overwrite"}));
  CHECK(failed.code == 70);
  CHECK(is_as_before());

  // Killed, at the next start.
  {
    const Process process(tiny.path(), with({"train.steps=1000000", "train.eval_every=1000000",
                                             "seed=1", "--overwrite"}));
    const auto has_started = [&] {
      return contains(content(tiny.path() / "out/exact/metrics.jsonl"), "\"seed\":1");
    };
    while (!has_started()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    REQUIRE(wait_for_lines(tiny.path() / "out/vcas/metrics.jsonl", 30));
    process.signal(SIGKILL);
    process.wait();
    CHECK(fs::exists(tiny.path() / "out/replaced/compare.json"));
  }
  succeeded(run(tiny.path(), {"compare", "--resume", "out"}));
  CHECK(is_as_before());

  // What a killed run of it was replacing does not come back with the new one.
  fs::create_directories(tiny.path() / "out/exact/replaced");
  fs::copy(tiny.path() / "out/exact/checkpoint-40",
           tiny.path() / "out/exact/replaced/checkpoint-40", fs::copy_options::recursive);
  // One that has saved has replaced it.
  succeeded(run(tiny.path(), with({"train.steps=20", "--overwrite"})));
  CHECK(saved_steps(tiny.path() / "out/exact") == std::vector<std::int64_t>{20});
  CHECK_FALSE(is_as_before());
  CHECK_FALSE(fs::exists(tiny.path() / "out/replaced"));

  // A run that is none of the comparison's is not written into.
  write_text(tiny.path() / "a.json", content(tiny.path() / "tiny.json"));
  write_text(tiny.path() / "b.json", content(tiny.path() / "tiny.json"));
  succeeded(tiny.train({"run.folder=out/a"}));
  check_failure(run(tiny.path(), {"compare", "a.json", "b.json", "--folder", "out",
                                  "train.steps=20", "--overwrite"}),
                73, {"error: out/a: the folder of another run\n"});
  CHECK(saved_steps(tiny.path() / "out/a") == std::vector<std::int64_t>{20, 40});
  CHECK(saved_steps(tiny.path() / "out/exact") == std::vector<std::int64_t>{20});
}

TEST_CASE("an exact configuration has nothing to be compared with, but its variants have") {
  const TinyRun tiny;
  const std::string exact = GENERATE("method.type=exact", "vcas.enabled=false");
  for (const Outcome& outcome : {tiny.train({"--compare", "exact", exact}),
                                 run(tiny.path(), {"compare", "tiny.json", exact})}) {
    check_message(outcome, 2,
                  "error: the configuration is exact already: nothing to compare\n"
                  "  hint: method.type=vcas compares it with VCAS; vcas compare takes --variant\n");
    CHECK_FALSE(fs::exists(tiny.path() / "runs"));
  }
  succeeded(run(tiny.path(), {"compare", "tiny.json", exact, "train.steps=4", "--variant", "exact",
                              "--variant", "slow: schedule.learning_rate=0.001"}));
}

TEST_CASE("numbers that are the same for all seeds have no spread") {
  const TinyRun tiny;
  succeeded(run(tiny.path(), {"compare", "tiny.json", "--folder", "out", "--seeds", "0,1,2,3,4,5,6",
                              "train.steps=1"}));
  const auto all = tiny.json("out/compare.json");
  for (const nlohmann::json& variant : all["summary"]) {
    CHECK(variant["values"]["steps"] ==
          nlohmann::json({{"mean", 1.0}, {"spread", 0.0}, {"seeds", 7.0}}));
    CHECK(variant["values"]["forward_share"]["mean"] == 1.0);
  }
  check_failure(run(tiny.path(), {"inspect", "out"}), 66,
                {"hint: each run has a folder in it, such as out/exact/seed0"});
}
