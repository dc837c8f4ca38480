// That nothing is lost and nothing waits for ever, whatever is done to a run from outside.
#include <fmt/format.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "core/files.h"
#include "tests/support/catch.h"
#include "tests/tools/program.h"

namespace fs = std::filesystem;

namespace {

// Runs a line of a shell in `folder`, where vcas and vcas-train are commands. Returns its code.
int shell(const fs::path& folder, const std::string& line) {
  write_text(folder / "line.sh", "export PATH=" + fs::path(VCAS_PROGRAM).parent_path().string() +
                                     ":/usr/bin:/bin CUDA_VISIBLE_DEVICES= TERM=dumb\n" + line);
  const std::string command = "cd '" + folder.string() + "' && timeout 60 sh line.sh";
  return WEXITSTATUS(std::system(command.c_str()));
}

nlohmann::json read_state(const fs::path& checkpoint) {
  return nlohmann::json::parse(content(checkpoint / "trainer_state.json"));
}

void write_state(const fs::path& checkpoint, const nlohmann::json& state) {
  write_text(checkpoint / "trainer_state.json", state.dump());
  vcas::write_manifest(checkpoint);
}

}  // namespace

TEST_CASE("reliability: messages that nobody takes change no exit code") {
  const TinyRun tiny;
  for (const char* closed : {"2>/dev/full", "2>&-"}) {
    CAPTURE(closed);
    const std::string end = std::string(" ") + closed;
    CHECK(shell(tiny.path(), "vcas-train nosuch.json" + end) == 66);
    CHECK(shell(tiny.path(), "vcas-train tiny.json nosuch.setting=1" + end) == 78);
    CHECK(shell(tiny.path(),
                "vcas-train tiny.json train.steps=2 run.folder=out --overwrite" + end) == 0);
    // No file got the number of standard error, and messages with it.
    CHECK_THAT(content(tiny.path() / "out/lock"), Catch::Matchers::Matches("process [0-9]+\n"));
    vcas::check_manifest(tiny.path() / "out/last");
  }
  CHECK(shell(tiny.path(), "vcas settings >/dev/full 2>/dev/full") == 74);
}

TEST_CASE("reliability: a reader that goes away ends no training") {
  const TinyRun tiny;
  const std::string train = "{ vcas-train tiny.json run.folder=out; echo $? >code; } ";
  CHECK(shell(tiny.path(), train + "2>&1 | true") == 0);
  CHECK(fs::exists(tiny.path() / "out/checkpoint-40"));
  CHECK(events_of(tiny.path() / "out/metrics.jsonl", "end").size() == 1);
  CHECK(content(tiny.path() / "code") == "74\n");  // its results went nowhere
}

TEST_CASE("reliability: a folder with nothing but what a killed start leaves is as good as none") {
  const TinyRun tiny;
  const fs::path out = tiny.path() / "out";
  fs::create_directories(out / "checkpoint-5.tmp/sub");
  for (const char* name : {"lock", "config.json.tmp", "crash-3.json.tmp"})
    write_text(out / name, "");
  const bool overwrite = GENERATE(false, true);
  succeeded(tiny.train({"train.steps=2", "run.folder=out",
                        overwrite ? "run.overwrite=true" : "run.overwrite=false"}));
  for (const auto& entry : fs::directory_iterator(out))
    CHECK_FALSE(contains(entry.path().filename(), ".tmp"));
}

TEST_CASE("reliability: the seconds of a save count, also where a run goes on from it") {
  const TinyRun tiny;
  const fs::path out = tiny.path() / "out";
  succeeded(tiny.train({"run.folder=out"}));
  forget_after(out, 20);
  succeeded(tiny.train({"run.folder=out", "--resume"}));
  double seconds = 0;
  int saves = 0;
  for (const nlohmann::json& line : vcas::read_metrics(out / "metrics.jsonl")) {
    if (line["event"] == "checkpoint") seconds += line["seconds"].get<double>(), ++saves;
    if (line["event"] == "end")
      CHECK(std::abs(line["totals"]["checkpoint_seconds"].get<double>() - seconds) < 1e-9);
  }
  CHECK(saves == 2);
  CHECK(events_of(out / "metrics.jsonl", "end").size() == 1);
}

TEST_CASE("reliability: what a killed save or prune leaves goes at the next start") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out"}));
  const fs::path out = tiny.path() / "out";
  fs::copy(out / "checkpoint-20", out / "checkpoint-15.tmp");
  fs::copy(out / "checkpoint-20", out / "checkpoint-41.tmp-2");
  write_text(out / "crash-7.json.tmp", "{");
  const std::vector<std::string> theirs = {"thesis.tmp", "metrics.jsonl.tmp-backup",
                                           "config.json.tmp.old", "checkpoint-10.tmp-mine/a"};
  fs::create_directory(out / "checkpoint-10.tmp-mine");
  for (const std::string& name : theirs) write_text(out / name, "of the user");
  write_text(out / "metrics.jsonl.tmp-12", "{");
  fs::create_directory_symlink("nowhere", out / "best.tmp");
  succeeded(tiny.train({"run.folder=out", "--resume"}));
  for (const std::string& name : theirs) CHECK(content(out / name) == "of the user");
  fs::remove_all(out / "checkpoint-10.tmp-mine");
  CHECK(saved_steps(out) == std::vector<std::int64_t>{20, 40});
  CHECK_FALSE(fs::exists(out / "crash-7.json.tmp"));
  CHECK_FALSE(fs::exists(out / "metrics.jsonl.tmp-12"));
  CHECK_FALSE(fs::is_symlink(out / "best.tmp"));
}

TEST_CASE("reliability: folders that are not a run's own stay") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out", "train.steps=2"}));
  for (const char* name : {"new.dry-run", "new.dry-run.tmp", "ex.tmp"}) {
    fs::create_directories(tiny.path() / name);
    write_text(tiny.path() / name / "thesis", "years of work");
  }
  succeeded(tiny.train({"run.folder=new", "--dry-run"}));
  succeeded(run(tiny.path(), {"export", "--model", "out", "--to", "ex"}));
  for (const char* name : {"new.dry-run", "new.dry-run.tmp", "ex.tmp"})
    CHECK(content(tiny.path() / name / "thesis") == "years of work");
  for (const char* name : {"new", "new.dry-run.tmp-2", "ex.tmp-2"})
    CHECK_FALSE(fs::exists(tiny.path() / name));
}

TEST_CASE("reliability: a run goes on with as many threads as it had, and says so") {
  const TinyRun tiny;
  const std::vector<std::string> train = {"vcas-train",     "--config",
                                          "tiny.json",      "threads=0",
                                          "run.folder=out", "train.checkpoint_every=20"};
  succeeded(run(tiny.path(), train, {"OMP_NUM_THREADS=2"}));
  const std::string weights = tiny.weights("out");
  const nlohmann::json two = {2};
  CHECK(read_state(tiny.path() / "out/last")["threads"] == two);
  forget_after(tiny.path() / "out", 20);
  std::vector<std::string> resume = train;
  resume.emplace_back("--resume");
  const Outcome other = succeeded(run(tiny.path(), resume, {"OMP_NUM_THREADS=1"}));
  check_contains(other.err, {" · cpu (2 threads)\n",
                             "  threads  2 as before, for the same bits; 1 are usable\n"});
  CHECK(tiny.weights("out") == weights);
  CHECK(read_state(tiny.path() / "out/last")["threads"] == two);
  CHECK(tiny.json("out/config.json")["threads"] == 0);

  // Earlier versions noted one number, or none.
  nlohmann::json state = read_state(tiny.path() / "out/checkpoint-20");
  state["threads"] = 2;
  write_state(tiny.path() / "out/checkpoint-20", state);
  forget_after(tiny.path() / "out", 20);
  CHECK(contains(run(tiny.path(), resume, {"OMP_NUM_THREADS=1"}).err, "cpu (2 threads)\n"));
  forget_after(tiny.path() / "out", 20);
  state.erase("threads");
  write_state(tiny.path() / "out/checkpoint-20", state);
  CHECK(contains(run(tiny.path(), resume, {"OMP_NUM_THREADS=1"}).err, "cpu (1 threads)\n"));
  for (const nlohmann::json& wrong :
       {nlohmann::json(0), nlohmann::json(-1), nlohmann::json("2"), nlohmann::json(65535),
        nlohmann::json(), nlohmann::json::array({2, 2})}) {
    state["threads"] = wrong;
    write_state(tiny.path() / "out/checkpoint-20", state);
    check_failure(run(tiny.path(), {"vcas-train", "--resume", "out/checkpoint-20", "--overwrite"}),
                  65, {"trainer_state.json has " + wrong.dump() + " threads\n"});
  }
}

TEST_CASE("reliability: a run that goes on from an older checkpoint stays on its timeline") {
  const TinyRun tiny;
  const std::vector<std::string> settings = {"train.steps=1000000", "train.eval_every=1000000",
                                             "train.checkpoint_every=10",
                                             "train.keep_checkpoints=1000", "run.folder=out"};
  const fs::path out = tiny.path() / "out", metrics = out / "metrics.jsonl";
  const auto start = [&](const std::vector<std::string>& more) {
    return Process(tiny.path(),
                   with(with({"vcas-train", "--config", "tiny.json"}, settings), more));
  };
  const auto stop_at = [&](const Process& process, int starts, int signal) {
    while (!fs::exists(metrics) || std::ssize(events_of(metrics, "start")) < starts ||
           vcas::read_metrics(metrics).back()["event"] == "start")
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    process.signal(signal);
    process.wait();
    std::int64_t step = 0;
    for (const nlohmann::json& line : events_of(metrics, "train")) CHECK(line["step"] == ++step);
    return step;
  };
  const Process first = start({});
  REQUIRE(wait_for_lines(metrics, 300));
  CHECK(stop_at(first, 1, SIGTERM) > 100);
  const std::int64_t newest = saved_steps(out).back();
  stop_at(start({"--resume", "out/checkpoint-10", "--overwrite"}), 2, SIGKILL);
  CHECK(saved_steps(out).back() < newest);
  stop_at(start({"--resume"}), 3, SIGTERM);
}

TEST_CASE("reliability: a damaged state is refused, and its fault named") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out", "train.steps=2"}));
  const fs::path checkpoint = tiny.path() / "out/checkpoint-2";
  const nlohmann::json good = read_state(checkpoint);
  const auto refused = [&](const nlohmann::json& state, const std::string& why) {
    write_state(checkpoint, state);
    CAPTURE(why);
    check_failure(tiny.train({"run.folder=out", "train.steps=2", "--resume"}), 65,
                  {"error: out/checkpoint-2/trainer_state.json: ", why,
                   "\n  hint: use an earlier checkpoint\n"});
  };
  const std::string none =
      "no object with an integer \"step\", an object \"session\" and texts in \"data\"\n";
  for (const char* key : {"step", "session"}) {
    nlohmann::json state = good;
    state.erase(key);
    refused(state, none);
  }
  refused(nlohmann::json::array(), none);
  const fs::path metrics = tiny.path() / "out/metrics.jsonl";  // of a run that may have a step 3
  write_text(metrics, content(metrics).substr(0, content(metrics).rfind("{\"event\":\"end\"")));
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"vcas-train", "--resume", "out/checkpoint-2"},
           {"vcas-train", "--resume", "out/checkpoint-2", "--validate"},
           {"replay", "out", "--step", "3"}}) {
    check_failure(
        run(tiny.path(), arguments), 65,
        {"out/checkpoint-2/trainer_state.json: " + none + "  hint: use an earlier checkpoint\n"});
  }
  for (const char* key : {"evaluated", "best", "evaluation"}) {
    nlohmann::json state = good;
    state.erase(key);
    refused(state, std::string("key '") + key + "' not found");
  }
  for (const char* place : {"/step", "/evaluated", "/best/step", "/session/trainer/step",
                            "/session/trainer/optimizer_steps"}) {
    nlohmann::json state = good;
    state[nlohmann::json::json_pointer(place)] = -1;
    refused(state, std::string(place) + " is -1\n");
  }
  const std::string lacks = "[json.exception.out_of_range.403] key ";
  nlohmann::json state = good;
  state["session"].erase("totals");
  refused(state, "the state of the run: " + lacks + "'totals' not found\n");
  state = good;
  state["session"]["trainer"]["method"]["state"].erase("s");
  refused(state, "the state of the VCAS controller: " + lacks + "'s' not found\n");
  nlohmann::json deep = nlohmann::json::array();
  for (int i = 0; i < 100; ++i) deep = nlohmann::json::array({deep});
  write_state(checkpoint, deep);
  CHECK(contains(tiny.train({"run.folder=out", "train.steps=2", "--resume"}).err,
                 "trainer_state.json: values nest deeper than 64\n"));
}

TEST_CASE("reliability: a checkpoint never holds numbers that are not finite") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out", "method.type=exact"}));
  // The squares of gradients overflow in Adam's second moment; no weight moves by it.
  const Outcome outcome =
      tiny.train({"run.folder=huge", "method.type=exact", "optimizer.max_gradient_norm=0",
                  "train.steps=2", "schedule.learning_rate=1e15", "schedule.kind=constant"});
  INFO(outcome.err);
  CHECK(outcome.code == 70);
  CHECK(saved_steps(tiny.path() / "huge").empty());
}

TEST_CASE("reliability: a file that may not grow is told as such") {
  const TinyRun tiny;
  CHECK(shell(tiny.path(), "ulimit -f 8; vcas-train tiny.json run.folder=out 2>err") == 74);
  INFO(content(tiny.path() / "err"));
  CHECK(content(tiny.path() / "err")
            .ends_with(": cannot write: File too large\n"
                       "  hint: raise the limit of the size of files (ulimit -f)\n"));
  for (const auto& entry : fs::directory_iterator(tiny.path() / "out"))
    CHECK_FALSE(contains(entry.path().filename(), ".tmp"));
}

TEST_CASE("reliability: a checkpoint may be removed while it is evaluated") {
  const TinyRun tiny;
  std::string rows = "text\tlabel\n";
  for (int i = 0; i < 40; ++i) rows += fmt::format("a b c\t{}\n", i % 2);
  write_text(tiny.path() / "train.tsv", rows);
  for (int i = 0; i < 400000; ++i) rows += fmt::format("a b c a b c a b c\t{}\n", i % 2);
  write_text(tiny.path() / "test.tsv", rows);
  write_text(tiny.path() / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n");
  succeeded(tiny.train({"run.folder=out", "train.steps=2", "data.type=text", "model.type=bert",
                        "data.text.train_file=train.tsv", "data.text.test_file=train.tsv",
                        "data.text.first=text", "data.text.vocabulary=vocab.txt"}));
  // While it reads the data it has all of the checkpoint.
  CHECK(shell(tiny.path(), R"(
    vcas eval --model out/last data.text.test_file=test.tsv data.text.cache=false 2>err & id=$!
    while kill -0 $id && ! ls -l /proc/$id/fd | grep -q test.tsv; do :; done
    rm -r out/checkpoint-2
    wait $id)") == 0);
  INFO(content(tiny.path() / "err"));
}

TEST_CASE("reliability: nothing waits for a pipe") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out", "train.steps=2"}));
  fs::copy(tiny.path() / "out", tiny.path() / "copy",
           fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  const fs::path manifest = tiny.path() / "out/checkpoint-2/manifest.json";
  fs::remove(manifest);
  REQUIRE(::mkfifo(manifest.c_str(), 0600) == 0);
  CHECK(shell(tiny.path(), "vcas-train --resume out 2>err") == 66);
  CHECK(contains(content(tiny.path() / "err"), "manifest.json: not a regular file"));
  const fs::path vocabulary = tiny.path() / "vocab.txt";
  REQUIRE(::mkfifo(vocabulary.c_str(), 0600) == 0);
  CHECK(shell(tiny.path(), "echo a | vcas tokenize --vocab vocab.txt 2>err") == 66);
  INFO(content(tiny.path() / "err"));
  CHECK(contains(content(tiny.path() / "err"), "vocab.txt: not a regular file"));
}

#if !VCAS_ASAN && !VCAS_TSAN  // which take terabytes of addresses
TEST_CASE("reliability: limits of the machine are told as such") {
  const TinyRun tiny;
  for (const int kib : {200000, 250000, 300000, 350000, 400000, 500000}) {
    CAPTURE(kib);
    // OpenBLAS 0.3.29 hangs where it lacks memory for threads of its own, before any line of ours.
    const int code = shell(tiny.path(), "ulimit -v " + std::to_string(kib) +
                                            "; export OPENBLAS_NUM_THREADS=1\n"
                                            "timeout 20 vcas-train tiny.json threads=4 "
                                            "train.steps=2 run.folder=out --overwrite 2>err");
    CAPTURE(content(tiny.path() / "err"));
    CHECK((code == 0 || code == 71));
  }
}
#endif

#if !VCAS_TSAN  // which starts no program under such a limit
TEST_CASE("reliability: a thread that cannot be started is told as such") {
  const TinyRun tiny;
  // A stack of 200 TB fits no address space. OpenBLAS starts no thread of its own.
  const std::string threads = GENERATE("1", "4");
  const std::string limit = "ulimit -s 200000000000";
  if (shell(tiny.path(), limit + " 2>err") != 0) {
    WARN("skipped: the limit of stacks cannot be raised here");
    return;
  }
  CHECK(shell(tiny.path(), limit + "; export OPENBLAS_NUM_THREADS=1\n" +
                               "vcas-train tiny.json train.steps=2 run.folder=out threads=" +
                               threads + " 2>err") == 71);
  const std::string error = content(tiny.path() / "err");
  INFO(error);
  CHECK(error.ends_with(
      "error: no thread can be started: Resource temporarily unavailable\n"
      "  hint: raise the limits of processes and memory (ulimit -u, ulimit -v), or lower that of "
      "stacks (ulimit -s)\n"));
}
#endif

TEST_CASE("reliability: sizes that no machine has are told before anything is taken") {
  const TinyRun tiny;
  const auto refused = [&](const std::vector<std::string>& settings, int code,
                           const std::string& why) {
    std::vector<std::string> arguments = settings;
    arguments.emplace_back("run.folder=out");
    CAPTURE(settings);
    check_failure(tiny.train(arguments), code, {why});
    CHECK_FALSE(fs::exists(tiny.path() / "out"));
  };
  refused({"threads=65535"}, 78, "threads must be at most 1024");
  refused({"train.epochs=1e30", "train.steps=0"}, 78, "train.epochs must be at most");
  refused({"train.batch_size=4611686018427387904"}, 78, "train.batch_size must be");
  refused({"train.eval_batch=1073741824", "model.width=1048576", "model.heads=1"}, 71,
          "bytes are more than any memory");
  refused({"model.width=200000", "model.depth=50"}, 71,
          "train.eval_batch too must be small, or the model smaller (model.*)\n");
  refused({"data.synthetic.items=1073741824", "data.synthetic.shape=[16,1024,1024]"}, 71,
          "bytes are more than any memory");
  refused({"data.synthetic.items=1073741824", "data.synthetic.shape=[1,64,64]"}, 71,
          "data.synthetic needs 4096.0 GiB, and ");
  for (const char* key : {"data.synthetic.vocabulary", "model.vocabulary"})
    refused(
        {"data.type=synthetic_text", "model.type=bert", std::string(key) + "=4611686018427387904"},
        78, std::string(key) + " must be");
}

TEST_CASE("reliability: a run does not go on with another image of the same size") {
  const TinyRun tiny;
  const std::string golden = std::string(VCAS_SOURCE_DIR) + "/tests/golden/images/";
  const auto write = [&](const std::string& split, int number, char behind) {  // its end
    for (const char* colour : {"red", "blue"}) {
      const fs::path folder = tiny.path() / "images" / split / colour;
      fs::create_directories(folder);
      write_text(folder / (std::to_string(number) + ".jpg"),
                 content(golden + colour + ".jpg") + behind);
    }
  };
  for (int number = 0; number < 8; ++number) write("train", number, 'a');
  write("val", 0, 'a');
  const auto train = [&](const std::vector<std::string>& more) {
    return tiny.train(
        with({"run.folder=out", "data.type=image_folder", "data.folder=images", "data.image.size=8",
              "train.batch_size=4", "train.steps=8", "train.eval_every=4"},
             more));
  };
  const Outcome whole = train({});
  if (whole.code == 69) return;  // this build reads no JPEG files
  REQUIRE(whole.code == 0);
  const std::string weights = tiny.weights("out");
  for (const char* split : {"train", "val"}) {
    CAPTURE(split);
    forget_after(tiny.path() / "out", 4);
    write(split, 0, 'b');
    check_failure(train({"--resume"}), 65,
                  {std::string("error: images/") + split + "/",
                   "0.jpg: is not what this run has read before, here or"});
    write(split, 0, 'a');
    succeeded(train({"--resume"}));
    CHECK(tiny.weights("out") == weights);
  }
  write("train", 0, 'b');
  forget_after(tiny.path() / "out", 4);
  succeeded(train({"--resume", "out", "--resume-mode=fork", "run.folder=fork"}));
}

TEST_CASE("reliability: a run has the same bits each time, with one thread and with two") {
  const TinyRun tiny;
  for (const char* threads : {"threads=1", "threads=2"}) {
    CAPTURE(threads);
    for (const char* folder : {"run.folder=a", "run.folder=b"})
      succeeded(tiny.train({threads, folder, "--overwrite"}));
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      CHECK(content(tiny.path() / "a/last" / file) == content(tiny.path() / "b/last" / file));
    const auto lines = [&](const char* run) {
      std::vector<nlohmann::json> losses;
      for (const nlohmann::json& line : vcas::read_metrics(tiny.path() / run / "metrics.jsonl"))
        if (line.contains("loss"))
          losses.push_back({line["loss"], line.value("gradient_norm", 0.0)});
      return losses;
    };
    CHECK(lines("a") == lines("b"));
  }
}
