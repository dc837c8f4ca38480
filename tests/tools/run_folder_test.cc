// What the folders of runs hold, and that no command takes it away unasked.
#include <map>
#include <nlohmann/json.hpp>

#include "core/files.h"
#include "tests/support/catch.h"
#include "tests/tools/program.h"

namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kEndless = {"vcas-train", "--config", "tiny.json",
                                           "train.steps=1000000", "train.eval_every=1000000"};

}  // namespace

TEST_CASE("a fork never replaces the run that it starts from") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=all/out"}));
  fs::create_directory_symlink("all/out", tiny.path() / "link");
  const auto before = snapshot(tiny.path() / "all");
  for (const std::string& folder :
       {std::string("all/out"), std::string("./all/../all/out"), std::string("link"),
        std::string("all"), (tiny.path() / "all/out").string()})
    for (const char* source : {"all/out", "link/checkpoint-20", "all/out/best"}) {
      CAPTURE(folder, source);
      check_failure(run(tiny.path(), {"vcas-train", "--resume", source, "--resume-mode=fork",
                                      "--overwrite", "run.folder=" + folder}),
                    73,
                    {"error: " + folder + ": holds ",
                     ", which the new run starts from\n  hint: choose another "});
      CHECK(snapshot(tiny.path() / "all") == before);
    }

  // A fork that is not told its folder gets one beside that of the run.
  const std::vector<std::string> fork = {"vcas-train", "--resume", "all/out", "--resume-mode=fork"};
  succeeded(run(tiny.path(), with(fork, {"--overwrite"})));
  succeeded(run(tiny.path(), fork));
  CHECK(snapshot(tiny.path() / "all/out") == std::map<std::string, std::string>(before));
  succeeded(tiny.train({}));
  for (const char* folder : {"runs/tiny-fork", "runs/tiny-fork-2"}) {
    succeeded(tiny.train({"--resume", "--resume-mode=fork"}));
    CHECK(fs::exists(tiny.path() / folder / "last"));
  }
  succeeded(tiny.train({"--resume", "all/out-fork", "--resume-mode=fork"}));
  CHECK(fs::exists(tiny.path() / "all/out-fork-fork/last"));
  CHECK(fs::exists(tiny.path() / "all/out-fork/last"));
  CHECK(fs::exists(tiny.path() / "all/out-fork-2/last"));
}

TEST_CASE("that a run was overwriting is not stored, and is no reason to overwrite") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out", "train.steps=1", "--overwrite"}));
  const fs::path file = tiny.path() / "out/last/config.json";
  nlohmann::json config = nlohmann::json::parse(content(file));
  CHECK(config["run"]["overwrite"] == false);
  config["run"]["overwrite"] = true;  // as earlier versions did
  write_text(file, config.dump(2));
  vcas::write_manifest(tiny.path() / "out/last");
  succeeded(tiny.train({"run.folder=other", "train.steps=2"}));
  const auto before = snapshot(tiny.path() / "other");
  check_failure(
      run(tiny.path(), {"vcas-train", "--resume", "out", "--resume-mode=fork", "run.folder=other"}),
      73, {"error: other: the folder of another run\n"});
  CHECK(snapshot(tiny.path() / "other") == before);
}

TEST_CASE("a run that fails before it has saved leaves the one that it was to replace") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out"}));
  const fs::path out = tiny.path() / "out";
  auto before = snapshot(out);
  check_failure(tiny.train({"schedule.learning_rate=1e30", "schedule.kind=constant",
                            "method.type=exact", "run.folder=out", "--overwrite"}),
                70, {"saved out/crash-2.json; no checkpoint was made yet"});
  CHECK(fs::remove(out / "crash-2.json"));
  CHECK(snapshot(out) == before);

  // Killed, at the next start.
  const auto kill_early = [&](int number) {
    const std::string seed = "\"seed\":" + std::to_string(number);
    const Process process(tiny.path(), with(kEndless, {"run.folder=out", "--overwrite",
                                                       "seed=" + std::to_string(number)}));
    while (content(out / "metrics.jsonl").find(seed) == std::string::npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    REQUIRE(wait_for_lines(out / "metrics.jsonl", 30));
    process.signal(SIGKILL);
    process.wait();
    CHECK(saved_steps(out).empty());
    CHECK(saved_steps(out / "replaced") == std::vector<std::int64_t>{20, 40});
  };
  kill_early(1);
  kill_early(2);
  const Outcome resumed = succeeded(tiny.train({"run.folder=out", "--resume"}));
  CHECK(contains(resumed.err, "resuming out/checkpoint-40 "));
  CHECK(saved_steps(out) == std::vector<std::int64_t>{20, 40});
  CHECK_FALSE(fs::exists(out / "replaced"));

  // One that has saved has replaced it.
  succeeded(tiny.train({"run.folder=out", "--overwrite", "train.steps=10"}));
  CHECK(saved_steps(out) == std::vector<std::int64_t>{10});
  CHECK_FALSE(fs::exists(out / "replaced"));
}

TEST_CASE("a run that was killed before it linked its best checkpoint keeps it") {
  const TinyRun tiny;
  const std::vector<std::string> settings = {"run.folder=out", "train.eval_every=5",
                                             "train.steps=60", "schedule.learning_rate=0.02"};
  const fs::path out = tiny.path() / "out";
  succeeded(tiny.train(with(settings, {"train.keep_checkpoints=100"})));
  const auto state = [&] {
    return nlohmann::json::parse(content(out / "last/trainer_state.json"));
  };
  const std::int64_t best = state()["best"]["step"];
  REQUIRE(best < 60);  // else the end of the run would link it
  const nlohmann::json end = state()["best"];
  forget_after(out, best);
  fs::create_directory_symlink("checkpoint-5", out / "best");  // the last that was linked
  const Outcome resumed =
      succeeded(tiny.train(with(settings, {"train.keep_checkpoints=1", "--resume"})));
  CHECK(state()["best"] == end);
  CHECK(fs::read_symlink(out / "best") == "checkpoint-" + std::to_string(best));
  CHECK(contains(resumed.out, "best checkpoint-" + std::to_string(best) + " "));
  succeeded(run(tiny.path(), {"eval", "--model", "out/best"}));
  CHECK(saved_steps(out) == std::vector<std::int64_t>{best, 60});
}

TEST_CASE("going on from an older checkpoint replaces the later ones only when told to") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out", "train.eval_every=5", "train.steps=60",
                        "train.keep_checkpoints=100", "schedule.learning_rate=0.02"}));
  const fs::path out = tiny.path() / "out";
  const auto before = snapshot(out);
  // One whose best evaluation so far was that of an earlier one.
  std::int64_t older = 5, best = 5;
  for (; best == older; older += 5)
    best = nlohmann::json::parse(content(out / ("checkpoint-" + std::to_string(older + 5)) /
                                         "trainer_state.json"))["best"]["step"];
  REQUIRE(best < older);
  REQUIRE(older < 60);
  const std::string name = "checkpoint-" + std::to_string(older);
  const std::vector<std::string> resume = {"vcas-train", "--resume", "out/" + name};
  check_message(
      run(tiny.path(), resume), 73,
      "error: out has later checkpoints, up to checkpoint-60; going on from " + name +
          " would replace them\n"
          "  hint: --resume out goes on from the last one, --resume-mode=fork starts a new run, "
          "--overwrite removes the later ones\n");
  CHECK(snapshot(out) == before);

  // A folder in the place of a link is somebody's own.
  fs::remove(out / "last");
  fs::create_directory(out / "last");
  check_failure(run(tiny.path(), with(resume, {"--overwrite"})), 73,
                {"error: out/last: is no link to a checkpoint\n"});
  CHECK(saved_steps(out).back() == 60);
  fs::remove(out / "last");

  // That one may have been pruned since.
  fs::remove_all(out / ("checkpoint-" + std::to_string(best)));
  succeeded(run(tiny.path(), with(resume, {"--overwrite"})));
  CHECK(fs::exists(out / "best/model.safetensors"));
  CHECK(fs::read_symlink(out / "last") == "checkpoint-60");
  CHECK(tiny.weights("out") == before.at((out / "checkpoint-60/model.safetensors").string()));
}

TEST_CASE("a checkpoint is resumed where its run is, whatever leads to it") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out"}));
  fs::create_directories(tiny.path() / "links");
  fs::create_directory_symlink("../out/checkpoint-40", tiny.path() / "links/favourite");
  succeeded(run(tiny.path(), {"vcas-train", "--resume", "links/favourite"}));
  CHECK(fs::read_symlink(tiny.path() / "out/last") == "checkpoint-40");
  CHECK(std::distance(fs::directory_iterator(tiny.path() / "links"), {}) == 1);

  fs::create_directories(tiny.path() / "copies");
  fs::copy(tiny.path() / "out/checkpoint-20", tiny.path() / "copies/mine");
  check_failure(run(tiny.path(), {"vcas-train", "--resume", "copies/mine"}), 66,
                {"copies/mine: not in the folder of a run (",
                 "\n  hint: --resume-mode=fork starts a new run from it\n"});
  CHECK(std::distance(fs::directory_iterator(tiny.path() / "copies"), {}) == 1);
  CHECK(run(tiny.path(), {"vcas-train", "--resume", "copies/mine", "--resume-mode=fork"}).code ==
        0);
}

TEST_CASE("nothing is written where a run would remove it") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out"}));
  const auto before = snapshot(tiny.path() / "out");
  for (const char* folder : {"out/replaced", "out/checkpoint-7", "out/checkpoint-7.tmp", "out/last",
                             "out/best/finetune", "out/replaced/deep/er"}) {
    CAPTURE(folder);
    const Outcome taken = tiny.train({std::string("run.folder=") + folder, "--validate"});
    check_failure(taken, 73, {"hint: choose another run.folder\n"});
    CHECK(tiny.train({std::string("run.folder=") + folder}).err == taken.err);
    CHECK(run(tiny.path(), {"compare", "tiny.json", "--folder", folder}).code == 73);
    CHECK(snapshot(tiny.path() / "out") == before);
  }
  CHECK(contains(tiny.train({"run.folder=out/best/finetune"}).err,
                 "out/best/finetune: belongs to the run in "));
  for (const char* folder : {"out/replaced", "out/best/hf"})
    CHECK(run(tiny.path(), {"export", "--model", "out", "--to", folder}).code == 73);
  succeeded(tiny.train({"run.folder=out/tuned", "train.steps=1"}));  // a name of no run's
  // A user's own folder stays.
  fs::create_directories(tiny.path() / "out/replaced");
  write_text(tiny.path() / "out/replaced/notes.txt", "years of work");
  succeeded(run(tiny.path(), {"vcas-train", "--resume", "out"}));
  check_failure(tiny.train({"run.folder=out", "--overwrite"}), 73,
                {"out: its \"replaced\" is of no run, and a run that is replaced waits "
                 "there\n  hint: move that folder away\n"});
  CHECK(content(tiny.path() / "out/replaced/notes.txt") == "years of work");
  // JSON could not hold the name.
  const Outcome latin = run(tiny.path(), {"vcas-train", "caf\xE9.json"});
  CHECK(latin.code == 66);
  fs::copy(tiny.path() / "tiny.json", tiny.path() / "caf\xE9.json");
  for (const char* mode : {"--validate", "--dry-run", "train.steps=1"}) {
    check_failure(run(tiny.path(), {"vcas-train", "caf\xE9.json", mode}), 73,
                  {"byte 9 is not valid UTF-8\n  hint: rename it, or choose another"});
  }
  fs::rename(tiny.path() / "out", tiny.path() / "d\xE9");
  CHECK(run(tiny.path(), {"vcas-train", "--resume", "d\xE9"}).code == 73);
}

TEST_CASE("a fork that is refused leaves no folder") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out"}));
  const Outcome fork =
      run(tiny.path(), {"vcas-train", "--resume", "out/checkpoint-20", "--resume-mode=fork",
                        "run.folder=new/fork", "--profile-steps", "20:30"});
  check_failure(fork, 2, {"--profile-steps 20:30 is not within the steps of this run, 21:40\n"});
  CHECK_FALSE(fs::exists(tiny.path() / "new"));
  const Outcome wider = run(tiny.path(), {"vcas-train", "--resume", "out", "--resume-mode=fork",
                                          "run.folder=new/fork", "model.width=32"});
  CHECK(wider.code == 78);
  CHECK_FALSE(fs::exists(tiny.path() / "new"));
}

TEST_CASE("a run that is not told its folder gets the next one of its configuration") {
  const TinyRun tiny;
  succeeded(tiny.train({"train.steps=1"}));
  succeeded(tiny.train({"train.steps=2"}));
  CHECK(saved_steps(tiny.path() / "runs/tiny") == std::vector<std::int64_t>{1});
  CHECK(saved_steps(tiny.path() / "runs/tiny-2") == std::vector<std::int64_t>{2});
  for (const char* copy : {"tiny-8b", "tiny-07", "tiny-20251129", "tiny-9223372036854775807"})
    fs::copy(tiny.path() / "runs/tiny", tiny.path() / "runs" / copy,
             fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  fs::remove_all(tiny.path() / "runs/tiny");
  const Outcome third = tiny.train({"train.steps=3", "--validate"});
  CHECK(contains(third.out, "output runs/tiny-3 writable"));
  succeeded(tiny.train({"train.steps=3"}));
  CHECK(saved_steps(tiny.path() / "runs/tiny-3") == std::vector<std::int64_t>{3});

  // --resume takes the newest with these settings and says so; another folder must be told.
  CHECK(contains(tiny.train({"train.steps=2", "--resume"}).err,
                 "resuming runs/tiny-2/checkpoint-2 at step 2/2"));
  check_failure(tiny.train({"train.steps=7", "--resume"}), 78,
                {"error: train.steps differs from the checkpoint (3 -> 7); this "});
  const Outcome resumed = succeeded(tiny.train({"train.steps=3", "--resume"}));
  CHECK(contains(resumed.err, "resuming runs/tiny-3/checkpoint-3 at step 3/3"));
  CHECK(contains(tiny.train({"train.steps=2", "--resume", "runs/tiny-2"}).err,
                 "resuming runs/tiny-2/checkpoint-2 at step 2/2"));
  check_failure(tiny.train({"run.folder=runs/tiny-2"}), 73,
                {"error: runs/tiny-2: the folder of another run\n"});

  // The configuration that a run has saved stands for another run of its own.
  succeeded(run(tiny.path(), {"vcas-train", "--config", "runs/tiny-3/config.json"}));
  CHECK(saved_steps(tiny.path() / "runs/tiny-3-2") == std::vector<std::int64_t>{3});
  // Replacing is for the first one.
  succeeded(tiny.train({"train.steps=4", "--overwrite"}));
  CHECK(saved_steps(tiny.path() / "runs/tiny") == std::vector<std::int64_t>{4});
}

TEST_CASE("a run that was killed before its first save is the one to go on with") {
  const TinyRun tiny;
  succeeded(tiny.train({}));
  succeeded(tiny.train({}));
  const fs::path second = tiny.path() / "runs/tiny-2";
  for (const std::int64_t step : saved_steps(second))
    fs::remove_all(second / ("checkpoint-" + std::to_string(step)));
  check_message(
      tiny.train({"--resume"}), 66,
      "error: runs/tiny-2: no complete checkpoint\n"
      "  hint: start again without --resume; --overwrite run.folder=runs/tiny-2 takes its place\n");
  succeeded(tiny.train({"--resume", "runs/tiny"}));
  succeeded(tiny.train({"--overwrite", "run.folder=runs/tiny-2"}));
  succeeded(tiny.train({"--resume"}));
}

TEST_CASE("what stands beside a run has its name, from within the run too") {
  const TinyRun tiny;
  succeeded(tiny.train({"train.steps=1"}));
  const fs::path inside = tiny.path() / "runs/tiny";
  succeeded(run(inside, {"vcas-train", "--resume", ".", "--resume-mode=fork"}));
  for (const char* config : {"config.json", "./config.json", "last/config.json"})
    succeeded(run(inside, {"vcas-train", config}));
  succeeded(run(inside, {"compare", "./config.json"}));
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(tiny.path() / "runs"))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  CHECK(names == std::vector<std::string>{"tiny", "tiny-2", "tiny-3", "tiny-4", "tiny-compare",
                                          "tiny-fork"});
}

TEST_CASE("runs that start at the same time get folders of their own") {
  const TinyRun tiny;
  std::vector<Process> processes;
  for (int i = 0; i < 4; ++i)
    processes.emplace_back(tiny.path(), std::vector<std::string>{"vcas-train", "--config",
                                                                 "tiny.json", "train.steps=1"});
  for (const Process& process : processes) succeeded(process.wait());
  for (const char* folder : {"tiny", "tiny-2", "tiny-3", "tiny-4"})
    CHECK(saved_steps(tiny.path() / "runs" / folder) == std::vector<std::int64_t>{1});
}

TEST_CASE("a run whose folder was moved ends at its next save") {
  const TinyRun tiny;
  const Process process(tiny.path(), with(kEndless, {"run.folder=out"}));
  REQUIRE(wait_for_lines(tiny.path() / "out/metrics.jsonl", 30));
  fs::rename(tiny.path() / "out", tiny.path() / "moved");
  process.signal(SIGUSR1);
  check_failure(process.wait(), 74,
                {"error: out: was moved or removed while the run was using it\n  hint: --resume "
                 "goes on from its last checkpoint, where the folder is now\n"});
  CHECK_FALSE(fs::exists(tiny.path() / "out"));
}
