// Outputs that a user names: they replace their like, and nothing of a run.
#include "tests/support/catch.h"
#include "tests/tools/program.h"

namespace fs = std::filesystem;

TEST_CASE("outputs replace neither what runs have saved nor files of others") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=run", "train.steps=4", "train.eval_every=4"}));
  REQUIRE(run(tiny.path(), {"compare", "tiny.json", "--folder", "twins", "train.steps=4"}).code ==
          0);
  const std::vector<std::string> report = {"report", "run"};
  const std::vector<std::string> trace = {"vcas-train", "tiny.json", "--profile-steps", "1:2"};
  struct Case {
    std::vector<std::string> command, output;
    std::string error;
  };
  const std::string run_folder = fs::canonical(tiny.path() / "run").string();
  const std::string checkpoint = run_folder + "/checkpoint-4";
  const auto not_by = [](const std::string& option) {
    return ": there is a file that " + option +
           " did not write\n  hint: choose another place for " + option + ", or remove the file\n";
  };
  const std::string of_run = ": belongs to the run in " + run_folder + "\n";
  const std::vector<Case> cases = {
      {report,
       {"--to", "run/best/model.safetensors"},
       "error: run/best/model.safetensors: would be written into the checkpoint " + checkpoint +
           "\n  hint: choose another place for --to\n"},
      {report, {"--csv", "run/last/new.csv"}, "would be written into the checkpoint " + checkpoint},
      {report, {"--svg", "run/best"}, "would be written into the checkpoint " + checkpoint},
      {report, {"--tensorboard", "run/checkpoint-4/tb/"}, "the checkpoint " + checkpoint},
      {report,
       {"--to", "run/../run/metrics.jsonl"},
       "error: run/../run/metrics.jsonl" + of_run + "  hint: choose another place for --to\n"},
      {report, {"--csv", "run/config.json"}, "error: run/config.json" + of_run},
      {report, {"--csv", "run/log.txt"}, "error: run/log.txt" + of_run},
      {report, {"--to", "run/lock"}, "error: run/lock" + of_run},
      {report, {"--svg", "run/checkpoint-9/plots"}, "error: run/checkpoint-9/plots" + of_run},
      {report, {"--csv", "twins/compare.csv"}, "error: twins/compare.csv: belongs to the run in "},
      {report, {"--csv", "tiny.json"}, "error: tiny.json" + not_by("--csv")},
      {report, {"--to", "tiny.json"}, "error: tiny.json" + not_by("--to")},
      {report, {"--to", "run"}, "error: run: is a folder, and a file is needed\n"},
      {trace, {"--trace", "tiny.json"}, "error: tiny.json" + not_by("--trace")},
      {trace, {"--trace", "run/best/trace.json"}, "would be written into the checkpoint"},
      {trace, {"--trace", "run/crash-3.json"}, "error: run/crash-3.json" + of_run},
  };
  const auto files = [&] {
    auto now = snapshot(tiny.path());
    for (const char* name : {"stdout.txt", "stderr.txt"}) now.erase((tiny.path() / name).string());
    return now;
  };
  const auto kept = files();
  for (const Case& test : cases) {
    const std::vector<std::string> arguments = with(test.command, test.output);
    CAPTURE(arguments);
    check_failure(run(tiny.path(), arguments), 73, {test.error});
    CHECK(files() == kept);
  }
}

TEST_CASE("a trace that is lost ends no training") {
  const TinyRun tiny;
  fs::create_symlink("/dev/full", tiny.path() / "trace.json");
  const Outcome traced = succeeded(tiny.train(
      {"run.folder=run", "train.steps=4", "--profile-steps", "1:2", "--trace", "trace.json"}));
  CHECK(contains(traced.err,
                 "warning: trace.json: the trace could not be written\n  hint: make room there"));
  CHECK(tiny.end_of("run")["step"] == 4);
}

TEST_CASE("outputs replace earlier ones, and empty files") {
  const TinyRun tiny;
  write_text(tiny.path() / "table.csv", "");
  for (int i = 0; i < 2; ++i) {
    succeeded(tiny.train({"run.folder=run", "train.steps=4", "--overwrite", "--profile-steps",
                          "1:2", "--trace", "trace.json"}));
    for (const std::vector<std::string>& outputs :
         {std::vector<std::string>{},
          {"--to", "page.html", "--csv", "table.csv", "--svg", "run", "--tensorboard", "run/tb"}})
      succeeded(run(tiny.path(), with({"report", "run"}, outputs)));
  }
}

TEST_CASE("events of runs with equal names are below the folder asked for") {
  const TemporaryFolder folder;
  const std::vector<std::string> runs = {"a/x/run", "b/x/run"};
  for (const std::string& run : runs) {
    fs::create_directories(folder.path() / run);
    write_text(folder.path() / run / "metrics.jsonl",
               "{\"event\":\"start\",\"step\":0,\"date\":\"2026-11-23T12:00:00Z\"}\n");
  }
  succeeded(run(folder.path(), with({"report", "--tensorboard", "board"}, runs)));
  for (const std::string& run : runs) {
    const fs::path whole = fs::canonical(folder.path() / run);
    const char* const events = "events.out.tfevents.1795435200.vcas";
    CHECK(fs::exists(folder.path() / "board" / whole.relative_path() / events));
    CHECK_FALSE(fs::exists(whole / events));
  }
}
