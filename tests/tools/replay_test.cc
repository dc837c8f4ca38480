#include <set>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/tools/tiny_text.h"

namespace fs = std::filesystem;

TEST_CASE("replay names the operation that ended a run") {
  const TinyRun tiny;
  const std::vector<std::string> diverging = {"schedule.learning_rate=1e30",
                                              "schedule.kind=constant", "method.type=exact",
                                              "run.folder=out"};
  const auto check = [&](const std::string& from) {
    const auto before = snapshot(tiny.path() / "out");
    const Outcome replayed = run(tiny.path(), {"replay", "out"});
    INFO(replayed.out);
    CHECK(replayed.code == 70);
    CHECK(contains(replayed.out, "replaying step 2 from " + from + "\nitems of step 2: "));
    check_contains(replayed.err, {"error: step 2: vit.", " elements are not finite\n  "});
    CHECK(snapshot(tiny.path() / "out") == before);
  };
  check_failure(tiny.train(diverging), 70, {"vcas replay out names the operation\n"});
  check("the beginning");
  for (const std::vector<std::string>& reads :
       {std::vector<std::string>{"eval", "--model", "out"}, {"vcas-train", "--resume", "out"}})
    CHECK(contains(run(tiny.path(), reads).err,
                   "error: out: no complete checkpoint\n"
                   "  hint: it diverged before it saved; vcas replay says where\n"));

  std::vector<std::string> saving = diverging;
  saving.insert(saving.end(), {"train.checkpoint_every=1", "--overwrite"});
  REQUIRE(tiny.train(saving).code == 70);
  check("out/checkpoint-1");
}

TEST_CASE("replay takes the run that diverged last, where the one before it came back") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out", "train.steps=4", "train.checkpoint_every=1"}));
  for (const char* older : {"out/crash-2.json", "out/crash-3.json"})
    write_text(tiny.path() / older, "{}");
  REQUIRE(tiny.train({"schedule.learning_rate=1e30", "schedule.kind=constant", "method.type=exact",
                      "run.folder=out", "--overwrite"})
              .code == 70);
  CHECK(saved_steps(tiny.path() / "out").back() == 4);
  const Outcome replayed = run(tiny.path(), {"replay", "out"});
  INFO(replayed.err);
  CHECK(replayed.code == 70);
  CHECK(contains(replayed.out, "replaying step 2 from the beginning\n"));
  CHECK(contains(replayed.err, "error: step 2: vit."));
  const Outcome of_old = succeeded(run(tiny.path(), {"replay", "out", "--step", "4"}));
  CHECK(contains(of_old.out, "replaying step 4 from out/checkpoint-3\n"));
}

TEST_CASE("replay: no step behind the end of a run") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out", "train.steps=60", "train.eval_every=2",
                        "train.patience=1", "schedule.learning_rate=1e-30"}));
  succeeded(run(tiny.path(), {"replay", "out", "--step", "4"}));
  check_message(run(tiny.path(), {"replay", "out", "--step", "5"}), 2,
                "error: --step is 5, and the run ended with step 4\n");
}

TEST_CASE("replay of a fork that ended before it saved begins where the fork did") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out", "train.steps=4", "method.type=exact"}));
  const Outcome fork =
      tiny.train({"schedule.learning_rate=1e30", "schedule.kind=constant", "method.type=exact",
                  "run.folder=fork", "--resume", "out", "--resume-mode=fork"});
  check_failure(fork, 70, {"step 6: "});
  const Outcome replayed = run(tiny.path(), {"replay", "fork"});
  INFO(replayed.out << replayed.err);
  CHECK(replayed.code == 70);
  const std::string source = (tiny.path() / "out/checkpoint-4").string();
  CHECK(contains(replayed.out, "replaying step 6 from " + source + "\n"));
  CHECK(contains(replayed.err, "error: step 6: vit."));
  const Outcome before = run(tiny.path(), {"replay", "fork", "--step", "5"});
  CHECK(contains(before.out, "replaying step 5 from " + source + "\n"));
  CHECK(contains(before.err, "error: evaluation after step 5: "));
  check_message(run(tiny.path(), {"replay", "fork", "--step", "4"}), 2,
                "error: --step is 4, and the run began with step 5\n"
                "  hint: it is a fork of " +
                    source + "\n");

  fs::rename(tiny.path() / "out", tiny.path() / "moved");
  check_message(
      run(tiny.path(), {"replay", "fork"}), 66,
      "error: " + source +
          ": no such folder, and fork is a fork of it, without an earlier save of its own\n"
          "  hint: bring it back to replay the fork\n");
  fs::rename(tiny.path() / "moved", tiny.path() / "out");
  fs::remove(tiny.path() / "fork/metrics.jsonl");  // which tells what crash files do
  CHECK(run(tiny.path(), {"replay", "fork"}).code == 70);
  for (const char* damage : {R"({"ranks": "two"})", R"({"checkpoints": 3})"}) {
    write_text(tiny.path() / "fork/crash-6.json", damage);
    const Outcome damaged = run(tiny.path(), {"replay", "fork"});
    CAPTURE(damage);
    check_failure(damaged, 65,
                  {"error: fork/crash-6.json: ",
                   "\n  hint: the file is damaged; --step N looks at the step without it\n"});
  }
}

TEST_CASE("replay of a run that is well, and of what is none") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out", "train.steps=4"}));
  const Outcome well = succeeded(run(tiny.path(), {"replay", "out", "--step", "3"}));
  CHECK(contains(well.out, "ok  all numbers of step 3 and of an evaluation after it are finite\n"));

  check_message(run(tiny.path(), {"replay", "out"}), 66,
                "error: out: no crash-STEP.json in it\n"
                "  hint: --step N looks at any step of the run\n");
  check_message(run(tiny.path(), {"replay", "none"}), 66,
                "error: none: No such file or directory\n"
                "  hint: name the folder of a run, and make it readable\n");
  check_message(run(tiny.path(), {"replay", "out/checkpoint-4", "--step", "3"}), 66,
                "error: out/checkpoint-4/metrics.jsonl: No such file or directory\n"
                "  hint: replay takes the folder of a run\n");
  write_text(tiny.path() / "out/crash-3.json", R"({"step": 3, "ranks": 2})");
  const Outcome of_two = succeeded(run(tiny.path(), {"replay", "out"}));
  const std::string differs =
      "from the beginning\n  2 processes had trained: one may draw and round otherwise\n";
  CHECK(contains(of_two.out, differs));
  CHECK_FALSE(contains(well.out, "processes"));
  const fs::path metrics = tiny.path() / "out/metrics.jsonl";
  std::string lines = content(metrics);
  lines.replace(lines.find("\"ranks\":1"), 9, "\"ranks\":2");
  write_text(metrics, lines);
  CHECK(contains(run(tiny.path(), {"replay", "out", "--step", "3"}).out, differs));

  check_message(run(tiny.path(), {"replay", "out", "--step", "5"}), 2,
                "error: --step is 5, and the run ended with step 4\n");
}

TEST_CASE("replay names the items of a step: those of an epoch's steps are all of them") {
  const TinyRun tiny;
  succeeded(tiny.train(
      {"run.folder=out", "train.steps=5", "train.batch_size=64", "train.checkpoint_every=2"}));
  std::set<std::int64_t> items;
  for (const char* step : {"1", "2", "3", "4"}) {
    const std::string text = std::string("items of step ") + step + ": ",
                      out = succeeded(run(tiny.path(), {"replay", "out", "--step", step})).out;
    REQUIRE(contains(out, text));
    std::istringstream line(out.substr(out.find(text) + text.size()));
    for (std::int64_t item; line >> item;) items.insert(item);
  }
  CHECK(items.size() == 256);
}

TEST_CASE("replay refuses data that are not those of the run", "[text]") {
  const TinyText tiny;
  succeeded(tiny.train({"run.folder=out", "train.steps=4", "train.checkpoint_every=2"}));
  const std::vector<std::string> replay = {"replay", "out", "--step", "4"};
  succeeded(tiny.vcas(replay));
  std::string table = content(tiny.path() / "train.tsv");
  table.replace(table.find("a "), 2, "b ");
  write_text(tiny.path() / "train.tsv", table);
  check_failure(tiny.vcas(replay), 78, {"train.tsv has changed since out/checkpoint-2 was saved"});
}
