// Runs that are stopped, or refused, at their file operations: tests/faults/file_faults.cc.
// docs/reliability.md has the rule that they are held to.
#include <fmt/format.h>

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
    return command(with({"vcas-train", "-c", "small.json", "run.folder=out"}, more), at, error);
  }
  int command(const std::vector<std::string>& arguments, int at = 0, int error = 0,
              const std::string& more = "VCAS_FAULT_MORE=") const {
    return run(path(), arguments,
               {"LD_PRELOAD=" VCAS_FILE_FAULTS, "VCAS_FAULT_AT=" + std::to_string(at),
                "VCAS_FAULT=" + std::to_string(error), more})
        .code;
  }
  // The number of operations.
  int count(const std::vector<std::string>& arguments) const {
    fs::remove(path() / "list");
    CHECK(command(arguments, 0, 0, "VCAS_FAULT_LIST=" + (path() / "list").string()) == 0);
    const std::string list = content(path() / "list");
    return static_cast<int>(std::ranges::count(list, '\n'));
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

// Runs with `flag` where `before` stands, killed at each operation, and once more to the end.
void kill_everywhere(const FaultRun& small, const fs::path& before, const std::string& flag,
                     const Remains& whole) {
  for_each_operation([&](int operation) {
    CAPTURE(operation);
    fs::remove_all(small.out);
    fs::copy(before, small.out, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    const int code = small.train({flag}, operation);
    CHECK((code == kKilled || code == 0));
    CHECK(has_complete_checkpoint(small.out));
    if (code == kKilled) CHECK(small.train({flag}) == 0);
    CHECK(differences(Remains(small.out), whole) == "");
    return code == kKilled;
  });
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
  kill_everywhere(small, killed, "--resume", whole);
}

TEST_CASE("faults: a run that replaces another is killed at any file operation, and one is left") {
  const FaultRun small;
  REQUIRE(small.train({}) == 0);
  const Remains whole(small.out);
  const fs::path old = small.path() / "old";
  fs::remove_all(small.out);
  REQUIRE(small.train({"seed=1"}) == 0);
  fs::rename(small.out, old);
  kill_everywhere(small, old, "--overwrite", whole);
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
  for_each_operation([&](int operation) {
    const int error = operation % 2 == 0 ? ENOSPC : EIO;
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
    auto arguments = with({"vcas-train", "-c", "small.json", "run.folder=out"}, settings);
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

TEST_CASE("faults: a folder that cannot be written is told with what helps, before any step") {
  const FaultRun small;
  REQUIRE(small.train({}) == 0);
  for (const auto& [how, hint] :
       {std::pair{"--overwrite", "choose another run.folder"},
        {"--resume", "--resume-mode=fork run.folder=FOLDER goes on elsewhere"}}) {
    CAPTURE(how);
    check_failure(
        run(small.path(), {"vcas-train", "-c", "small.json", "run.folder=out", "--validate", how},
            {"LD_PRELOAD=" VCAS_FILE_FAULTS, "VCAS_FAULT_AT=1",
             "VCAS_FAULT=" + std::to_string(EROFS)}),
        73, {std::string(": Read-only file system\n  hint: ") + hint});
  }
}

TEST_CASE("faults: interrupted and short operations, and a clock that jumps, change nothing") {
  const FaultRun small;
  REQUIRE(small.train({}) == 0);
  const Remains whole(small.out);
  const std::vector<std::string> start = {"vcas-train", "-c", "small.json", "run.folder=out"};
  const std::string fault = GENERATE("VCAS_INTERRUPT=1", "VCAS_CLOCK=1");
  CAPTURE(fault);
  fs::remove_all(small.out);
  CHECK(small.command(start, 0, 0, fault) == 0);
  CHECK(differences(Remains(small.out), whole) == "");
  forget_after(small.out, 4);
  std::vector<std::string> resume = start;
  resume.emplace_back("--resume");
  CHECK(small.command(resume, 0, 0, fault) == 0);
  CHECK(differences(Remains(small.out), whole) == "");
}

TEST_CASE("faults: a signal at any file operation saves, and the run goes on to the same end") {
  const FaultRun small;
  // A checkpoint more may have been asked for.
  const auto remains = [&] {
    Remains run(small.out);
    std::erase_if(run.metrics,
                  [](const nlohmann::json& line) { return line["event"] == "checkpoint"; });
    return run;
  };
  const int operations = small.count({"vcas-train", "-c", "small.json", "run.folder=out"});
  CHECK(operations > 100);
  const Remains whole = remains();
  for (int operation = 1; operation <= operations; ++operation) {
    CAPTURE(operation);
    fs::remove_all(small.out);
    const int code = small.train({}, operation, -SIGTERM);
    CHECK((code == 0 || code == 75));
    if (code == 75) CHECK(small.train({"--resume"}) == 0);
    CHECK(differences(remains(), whole) == "");
  }
}

TEST_CASE("faults: a signal at any file operation leaves nothing of a dry run or an export") {
  const FaultRun small;
  REQUIRE(small.train({"model.type=vit", "model.width=8", "model.depth=1", "model.heads=2",
                       "model.patch=4", "data.synthetic.shape=[3,8,8]"}) == 0);
  const std::vector<std::string> command = GENERATE(
      std::vector<std::string>{"vcas-train", "small.json", "run.folder=new/x/run", "--dry-run"},
      std::vector<std::string>{"export", "--model", "out", "--to", "new"});
  const int operations = small.count(command);
  CHECK(operations > 5);
  for (int operation = 1; operation <= operations; ++operation) {
    CAPTURE(command, operation);
    fs::remove_all(small.path() / "new");
    const int code = small.command(command, operation, -SIGINT);
    const bool is_whole = code == 0 && command.front() == "export";
    CHECK((code == 0 || code == 75));
    CHECK(fs::exists(small.path() / "new") == is_whole);
    CHECK_FALSE(fs::exists(small.path() / "new.tmp"));
  }
}

TEST_CASE("faults: a divergence is told where nothing can be noted of it") {
  const FaultRun small;
  const std::vector<std::string> diverging = {"vcas-train", "small.json", "run.folder=out",
                                              "schedule.learning_rate=1e36"};
  const std::string list = (small.path() / "list").string();
  REQUIRE(small.command(diverging, 0, 0, "VCAS_FAULT_LIST=" + list) == 70);
  const std::string operations = content(list);
  const std::size_t noting = operations.find("crash-");
  REQUIRE(noting != operations.npos);
  fs::remove_all(small.out);
  const auto at = 1 + std::ranges::count(operations.substr(0, noting), '\n');
  check_failure(run(small.path(), diverging,
                    {"LD_PRELOAD=" VCAS_FILE_FAULTS, fmt::format("VCAS_FAULT_AT={}", at),
                     fmt::format("VCAS_FAULT={}", ENOSPC)}),
                70, {"weights unchanged\n  out/crash-2.json: cannot create: "});
}

TEST_CASE("faults: a fork that is killed at any file operation leaves its source as it was") {
  const FaultRun small;
  REQUIRE(small.train({}) == 0);
  const auto source = snapshot(small.out);
  const std::vector<std::string> fork = {"vcas-train",         "-c",           "small.json",
                                         "run.folder=fork",    "--resume",     "out",
                                         "--resume-mode=fork", "train.steps=8"};
  REQUIRE(small.command(fork) == 0);
  const Remains whole(small.path() / "fork");
  for_each_operation([&](int operation) {
    CAPTURE(operation);
    fs::remove_all(small.path() / "fork");
    const int code = small.command(fork, operation);
    CHECK((code == kKilled || code == 0));
    CHECK(snapshot(small.out) == source);
    if (code == kKilled) {
      std::vector<std::string> again = fork;
      again.emplace_back("--overwrite");
      CHECK(small.command(again) == 0);
      CHECK(snapshot(small.out) == source);
    }
    CHECK(differences(Remains(small.path() / "fork"), whole) == "");
    return code == kKilled;
  });
}

TEST_CASE("faults: a comparison that is killed at any file operation goes on to the same numbers") {
  const FaultRun small;
  const std::vector<std::string> start = {
      "compare",       "small.json", "--folder", "cmp",       "--set",
      "train.steps=2", "--variant",  "exact",    "--variant", "fast: schedule.learning_rate=0.1"};
  REQUIRE(small.command(start) == 0);
  const auto losses = [&] {
    std::vector<nlohmann::json> all;
    const auto record = nlohmann::json::parse(content(small.path() / "cmp/compare.json"));
    for (const nlohmann::json& run : record["runs"]) all.push_back(run["train_loss"]);
    return all;
  };
  const std::vector<nlohmann::json> whole = losses();
  REQUIRE(whole.size() == 2);
  for_each_operation([&](int operation) {
    CAPTURE(operation);
    fs::remove_all(small.path() / "cmp");
    const int code = small.command(start, operation);
    CHECK((code == kKilled || code == 0));
    if (code == kKilled) {
      const int resumed = small.command({"compare", "--resume", "cmp"});
      CHECK((resumed == 0 || resumed == 66));
      std::vector<std::string> again = start;
      again.emplace_back("--overwrite");
      if (resumed == 66) CHECK(small.command(again) == 0);
    }
    CHECK(losses() == whole);
    return code == kKilled;
  });
}

// In a file system of its own, where the kernel lets users make one.
TEST_CASE("faults: a file system that fills up has its exit code, and the run goes on") {
  const FaultRun small;
  REQUIRE(small.train({}) == 0);
  const Remains whole(small.out);
  fs::remove_all(small.out);
  const auto in_own = [&](const std::string& script) {
    write_text(small.path() / "own.sh",
               "export PATH=" + fs::path(VCAS_PROGRAM).parent_path().string() +
                   ":/usr/sbin:/usr/bin:/sbin:/bin CUDA_VISIBLE_DEVICES=\n"
                   "set -e\nmkdir -p full\n"
                   "mount -t tmpfs -o size=256k vcas full\n" +
                   script);
    const std::string line =
        "cd '" + small.path().string() + "' && unshare -rm env -i sh own.sh 2>err";
    return WEXITSTATUS(std::system(line.c_str()));
  };
  if (in_own("") != 0) {
    WARN("no file system can be made here");
    return;
  }
  const std::string train = "vcas-train -c small.json run.folder=full/out ";
  // It is full from the start, full after a while, then there is room.
  const int code = in_own(
      "for kib in 256 230 200 180 150; do\n"
      "  head -c ${kib}k /dev/zero >full/filler 2>/dev/null || true\n"
      "  code=0; " +
      train +
      "--overwrite || code=$?\n"
      "  case $code in 0|73|74) ;; *) exit $code ;; esac\n"
      "  rm full/filler\n"
      "  if [ $code != 0 ]; then " +
      train + "--resume || " + train +
      "--overwrite; fi\n"
      "  rm -rf out; cp -r full/out out; rm -rf full/out\n"
      "done\n");
  CAPTURE(content(small.path() / "err"));
  CHECK(code == 0);
  CHECK(contains(content(small.path() / "err"), "No space left on device"));
  nlohmann::json state = nlohmann::json::parse(content(small.out / "last/trainer_state.json"));
  state["session"].erase("totals");
  CHECK(state == whole.state);
  CHECK(content(small.out / "last/model.safetensors") == whole.files.at("model.safetensors"));
}

// VCAS_STEPS=100000: docs/results/faults.md.
TEST_CASE("faults: memory and descriptors are at a late step what they were at step 100") {
  const FaultRun small;
  const long last = environment_number("VCAS_STEPS", 3000);
  const Process process(small.path(), {"vcas-train", "-c", "small.json", "run.folder=out",
                                       "train.steps=" + std::to_string(last + last / 5),
                                       "train.eval_every=50", "train.log_every=100"});
  struct Use {
    double resident_kib = 0;
    std::ptrdiff_t descriptors = 0;
  };
  const auto use_at = [&](long step) {
    const std::string wanted = "\"event\":\"train\",\"step\":" + std::to_string(step) + ",";
    while (!contains(content(small.out / "metrics.jsonl"), wanted)) {
      REQUIRE(process.runs());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const fs::path proc = fs::path("/proc") / std::to_string(process.id());
    Use use;
    for (int look = 0; look < 100; ++look) {  // for a moment without a file being written
      const std::ptrdiff_t open = std::distance(fs::directory_iterator(proc / "fd"), {});
      use.descriptors = look == 0 ? open : std::min(use.descriptors, open);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::ifstream status(proc / "status");
    for (std::string word; status >> word;)
      if (word == "VmRSS:") status >> use.resident_kib;
    return use;
  };
  const Use early = use_at(100), late = use_at(last);
  succeeded(process.wait());
  WARN("step 100: " << early.resident_kib << " KiB, " << early.descriptors << " descriptors; step "
                    << last << ": " << late.resident_kib << " KiB, " << late.descriptors);
  CHECK(std::abs(late.resident_kib / early.resident_kib - 1) < 0.01);
  CHECK(late.descriptors == early.descriptors);
}
