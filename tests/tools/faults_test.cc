// Runs that are stopped, or refused, at their file operations: tests/faults/file_faults.cc.
// docs/reliability.md has the rule that they are held to.
#include <cerrno>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "core/files.h"
#include "tests/core/environment.h"
#include "tests/support/catch.h"
#include "tests/tools/program.h"

namespace fs = std::filesystem;

namespace {

constexpr int kKilled = 128 + SIGKILL;

// In memory where that is possible: disks take their time to sync.
struct FaultRun : TemporaryFolder {
  const fs::path out = path() / "out";

  FaultRun() {
    write_text(path() / "small.json", R"({
  "threads": 1,
  "data": {"type": "synthetic",
           "synthetic": {"items": 64, "eval_items": 16, "classes": 4, "shape": [12]}},
  "model": {"type": "mlp", "width": 8, "depth": 1},
  "train": {"steps": 6, "batch_size": 8, "eval_every": 2, "keep_checkpoints": 1, "log_every": 2},
  "schedule": {"learning_rate": 0.01},
  "method": {"type": "exact"}
})");
  }

  // The fault comes at operation `at`; 0: none comes. `error`: 0 kills.
  int train(const std::vector<std::string>& more, int at = 0, int error = 0) const {
    std::vector<std::string> arguments = {"vcas-train", "-c", "small.json", "run.folder=out"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return command(arguments, at, error);
  }
  int command(const std::vector<std::string>& arguments, int at = 0, int error = 0) const {
    return run(path(), arguments,
               {"LD_PRELOAD=" VCAS_FILE_FAULTS, "VCAS_FAULT_AT=" + std::to_string(at),
                "VCAS_FAULT=" + std::to_string(error)})
        .code;
  }
  // Goes on with what the fault left, as a user would.
  void go_on() const {
    const int code = train({"--resume"});
    if (code == 66) CHECK(train({"--overwrite"}) == 0);
    CHECK((code == 0 || code == 66));
  }
};

// What a run leaves that is not about time.
struct Remains {
  std::map<std::string, std::string> files;
  std::vector<nlohmann::json> metrics;
  nlohmann::json state;

  explicit Remains(const fs::path& run) {
    for (const auto& entry : fs::directory_iterator(run)) {
      const std::string name = entry.path().filename();
      files[name] = entry.is_symlink() ? fs::read_symlink(entry.path()).string() : "";
    }
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "config.json"})
      files[file] = content(run / "last" / file);
    state = nlohmann::json::parse(content(run / "last/trainer_state.json"));
    state["session"].erase("totals");
    for (nlohmann::json line : vcas::read_metrics(run / "metrics.jsonl")) {
      if (line["event"] == "start" || line["event"] == "warning") continue;
      for (const char* key : {"time", "seconds", "train_seconds", "totals", "peak_resident_bytes",
                              "time_saved", "time_saved_interval"})
        line.erase(key);
      metrics.push_back(line);
    }
    vcas::check_manifest(run / "last");
    vcas::check_manifest(run / "best");
  }
  bool operator==(const Remains&) const = default;
};

// What is not as it was: names of files, of parts of the state, and lines of metrics.
std::string differences(const Remains& run, const Remains& whole) {
  std::string text;
  for (const auto& [name, bytes] : whole.files)
    if (const auto own = run.files.find(name); own == run.files.end() || own->second != bytes)
      text += name + "\n";
  for (const auto& [name, bytes] : run.files)
    if (!whole.files.contains(name)) text += name + " is too much\n";
  if (run.state != whole.state) text += nlohmann::json::diff(whole.state, run.state).dump() + "\n";
  for (std::size_t i = 0; i < std::max(run.metrics.size(), whole.metrics.size()); ++i) {
    const auto line = [&](const Remains& of) {
      return i < of.metrics.size() ? of.metrics[i] : nlohmann::json();
    };
    if (line(run) != line(whole))
      text += line(run).dump() + "\nin place of\n" + line(whole).dump() + "\n";
  }
  return text;
}

// Calls `test` with 1, 2, 3, ... until it says that the fault came behind the last operation.
void for_each_operation(const std::function<bool(int)>& test) {
  int operation = 1;
  while (test(operation)) ++operation;
  CHECK(operation > 20);
}

bool is_complete(const fs::path& checkpoint) {
  try {
    vcas::check_manifest(checkpoint);
    return true;
  } catch (const vcas::Error&) {
    return false;
  }
}

bool has_complete_checkpoint(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.path().filename() == "manifest.json" && is_complete(entry.path().parent_path()))
      return true;
  return false;
}

}  // namespace

TEST_CASE("faults: a run that is killed at any file operation goes on to the same end") {
  const FaultRun small;
  REQUIRE(small.train({}) == 0);
  const Remains whole(small.out);
  for_each_operation([&](int operation) {
    CAPTURE(operation);
    fs::remove_all(small.out);
    const int code = small.train({}, operation);
    CHECK((code == kKilled || code == 0));
    if (code == kKilled) small.go_on();
    CHECK(differences(Remains(small.out), whole) == "");
    return code == kKilled;
  });
}

TEST_CASE("faults: a resume that is killed at any file operation goes on to the same end") {
  const FaultRun small;
  REQUIRE(small.train({}) == 0);
  const Remains whole(small.out);
  // Killed while it removed a checkpoint, before it moved the links.
  const fs::path killed = small.path() / "killed";
  fs::remove_all(small.out);
  REQUIRE(small.train({"train.keep_checkpoints=9"}) == 0);
  forget_after(small.out, 4);
  fs::rename(small.out / "checkpoint-2", small.out / "checkpoint-2.tmp");
  fs::rename(small.out, killed);
  for_each_operation([&](int operation) {
    CAPTURE(operation);
    fs::remove_all(small.out);
    fs::copy(killed, small.out, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    const int code = small.train({"--resume"}, operation);
    CHECK((code == kKilled || code == 0));
    CHECK(has_complete_checkpoint(small.out));
    if (code == kKilled) CHECK(small.train({"--resume"}) == 0);
    CHECK(differences(Remains(small.out), whole) == "");
    return code == kKilled;
  });
}

TEST_CASE("faults: a run that replaces another is killed at any file operation, and one is left") {
  const FaultRun small;
  REQUIRE(small.train({}) == 0);
  const Remains whole(small.out);
  const fs::path old = small.path() / "old";
  fs::remove_all(small.out);
  REQUIRE(small.train({"seed=1"}) == 0);
  fs::rename(small.out, old);
  for_each_operation([&](int operation) {
    CAPTURE(operation);
    fs::remove_all(small.out);
    fs::copy(old, small.out, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    const int code = small.train({"--overwrite"}, operation);
    CHECK((code == kKilled || code == 0));
    CHECK(has_complete_checkpoint(small.out));
    if (code == kKilled) CHECK(small.train({"--overwrite"}) == 0);
    CHECK(differences(Remains(small.out), whole) == "");
    return code == kKilled;
  });
}

TEST_CASE("faults: an export that is killed at any file operation is whole or absent") {
  const FaultRun small;
  REQUIRE(small.train({"model.type=vit", "model.width=8", "model.depth=1", "model.heads=2",
                       "model.patch=4", "data.synthetic.shape=[3,8,8]"}) == 0);
  const std::vector<std::string> export_it = {"export", "--model", "out", "--to", "ex"};
  for_each_operation([&](int operation) {
    CAPTURE(operation);
    for (const char* left : {"ex", "ex.tmp"}) fs::remove_all(small.path() / left);
    const int code = small.command(export_it, operation);
    CHECK((code == kKilled || code == 0));
    if (!fs::exists(small.path() / "ex")) CHECK(small.command(export_it) == 0);
    CHECK(fs::exists(small.path() / "ex/config.json"));
    CHECK(small.command({"inspect", "ex"}) == 0);
    return code == kKilled;
  });
}

TEST_CASE("faults: a disk that refuses has its exit code, and the run goes on to the same end") {
  const FaultRun small;
  REQUIRE(small.train({}) == 0);
  const Remains whole(small.out);
  const int error = GENERATE(ENOSPC, EIO);
  for_each_operation([&](int operation) {
    CAPTURE(operation, error);
    fs::remove_all(small.out);
    const int code = small.train({}, operation, error);
    CAPTURE(content(small.path() / "stderr.txt"));
    CHECK((code == 73 || code == 74 || code == 0));
    if (code != 0) small.go_on();
    CHECK(differences(Remains(small.out), whole) == "");
    return code != 0;
  });
}

TEST_CASE("faults: a run that is killed at random moments ends as the unbroken one") {
  using Clock = std::chrono::steady_clock;
  const FaultRun small;
  const std::vector<std::string> settings = {
      "model.type=vit",      "model.width=16",           "model.heads=2",
      "model.patch=4",       "method.type=vcas",         "data.synthetic.shape=[1,8,8]",
      "method.forward=true", "method.update_every=3",    "train.steps=48",
      "train.eval_every=16", "train.checkpoint_every=5", "train.keep_checkpoints=2"};
  const Clock::time_point start = Clock::now();
  REQUIRE(small.train(settings) == 0);
  const double whole_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const Remains whole(small.out);
  std::mt19937 random(1);
  std::uniform_real_distribution<double> moment(0, 1.2 * whole_seconds);
  for (long kills = 0, most = environment_number("VCAS_KILLS", 10); kills < most; ++kills) {
    CAPTURE(kills);
    if (random() % 2 == 0) fs::remove_all(small.out);
    std::vector<std::string> arguments = {"vcas-train", "-c", "small.json", "run.folder=out"};
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    arguments.push_back(fs::exists(small.out / "last") ? "--resume" : "--overwrite");
    const Process process(small.path(), arguments);
    std::this_thread::sleep_for(std::chrono::duration<double>(moment(random)));
    process.signal(SIGKILL);
    const int code = process.wait().code;
    CHECK((code == kKilled || code == 0));
    if (random() % 2 == 0) continue;  // killed again, while it goes on
    std::vector<std::string> rest = settings;
    rest.push_back("--resume");
    const int resumed = small.train(rest);
    if (resumed == 66) {
      rest.back() = "--overwrite";
      CHECK(small.train(rest) == 0);
    } else {
      CHECK(resumed == 0);
    }
    CHECK(differences(Remains(small.out), whole) == "");
  }
}

TEST_CASE("faults: every flipped bit of a checkpoint is found") {
  const FaultRun small;
  REQUIRE(small.train({}) == 0);
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(fs::canonical(small.out / "last")))
    files.push_back(entry.path());
  std::ranges::sort(files);
  std::mt19937 random(1);
  for (long flips = environment_number("VCAS_FLIPS", 200); flips > 0; --flips) {
    const fs::path& file = files[random() % files.size()];
    const std::string before = content(file);
    std::string after = before;
    const std::size_t at = random() % after.size();
    after[at] = static_cast<char>(after[at] ^ 1 << random() % 8);
    write_text(file, after);
    CAPTURE(file, at);
    CHECK_FALSE(is_complete(file.parent_path()));
    write_text(file, before);
  }
}
