// Runs of several ranks, as mpirun starts them.
#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>

#include "core/safetensors.h"
#include "tests/core/environment.h"
#include "tests/mpi/mpirun.h"
#include "tests/support/catch.h"
#include "tests/tools/tiny_text.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// The metrics without what time decides.
std::vector<json> lines_of(const fs::path& run) {
  std::vector<json> lines;
  for (json line : vcas::read_metrics(run / "metrics.jsonl")) {
    if (line["event"] == "warning") continue;
    for (const char* key :
         {"time", "seconds", "train_seconds", "imbalance", "time_saved", "time_saved_interval",
          "config", "date", "threads", "totals", "peak_resident_bytes", "planned_bytes"})
      line.erase(key);
    lines.push_back(line);
  }
  return lines;
}

// A long run of two ranks. `then`: what the shell does once it trains; $job is that of mpirun.
Outcome endless(const RanksRun& tiny, int timeout, const std::string& then) {
  return tiny.mpirun(
      2, "run.folder=out train.steps=100000 train.eval_every=1000000 run.rank_timeout=" +
             std::to_string(timeout) +
             " & job=$!; while [ $(cat out/metrics.jsonl | wc -l) -lt 20 ]; do "
             "sleep 0.1; done; " +
             then + "; wait $job");
}

}  // namespace

TEST_CASE("ranks: mpirun trains, evaluates and resumes", "[mpi]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  const Outcome whole = succeeded(tiny.mpirun(2, "run.folder=whole train.checkpoint_every=10"));
  CHECK(contains(whole.out, "done in"));
  CHECK(contains(whole.err, "cpu (1 threads) · 2 ranks\n"));
  CHECK_FALSE(contains(whole.err, "rank 1"));
  const std::vector<json> lines = lines_of(tiny.path() / "whole");
  std::vector<std::int64_t> steps;
  for (const json& line : lines)
    if (line["event"] == "train") steps.push_back(line["step"]);
  CHECK(steps.size() == 40);
  CHECK(tiny.json("whole/last/config.json")["train"]["micro_batch"] == 8);

  SECTION("the same bits again") {
    succeeded(tiny.mpirun(2, "run.folder=again train.checkpoint_every=10"));
    CHECK(tiny.weights("again") == tiny.weights("whole"));
    CHECK(lines_of(tiny.path() / "again") == lines);
  }
  SECTION("a resumed run has the bits of the unbroken one") {
    fs::copy(tiny.path() / "whole", tiny.path() / "broken",
             fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    forget_after(tiny.path() / "broken", 20);
    succeeded(tiny.mpirun(2, "run.folder=broken train.checkpoint_every=10 --resume"));
    CHECK(tiny.weights("broken") == tiny.weights("whole"));
    for (json& line : lines_of(tiny.path() / "broken"))
      if (line["event"] == "eval") CHECK(std::ranges::count(lines, line) == 1);
  }
  SECTION("another number of ranks goes on, where it fits") {
    const auto resumed_on = [&](int ranks, int micro_batch) {
      const std::string folder = "from" + std::to_string(micro_batch);
      const std::string arguments = "train.checkpoint_every=10 run.folder=" + folder +
                                    " train.micro_batch=" + std::to_string(micro_batch);
      succeeded(tiny.mpirun(2, arguments + " --overwrite"));
      forget_after(tiny.path() / folder, 20);
      return tiny.mpirun(ranks, arguments + " --resume");
    };
    for (const auto& [ranks, micro_batch] : {std::pair{1, 8}, {4, 4}}) {
      const Outcome outcome = resumed_on(ranks, micro_batch);
      CAPTURE(ranks, outcome.err);
      CHECK(outcome.code == 0);
      CHECK(contains(outcome.err, "at step 20/40"));
    }
    const auto check_unfit = [](const Outcome& outcome) {
      check_failure(outcome, 78,
                    {"train.batch_size 16 cannot be shared by 4 ranks in micro-batches of 8",
                     "hint: numbers of ranks that fit: 1, 2"});
    };
    check_unfit(resumed_on(4, 8));
    // Shares that ranks have by default are not blamed.
    check_unfit(tiny.mpirun(4, "run.folder=whole train.checkpoint_every=10 --resume"));
    check_failure(run(tiny.path(), {"vcas-train", "tiny.json", "--resume", "run.folder=whole",
                                    "train.checkpoint_every=10"}),
                  78, {"hint: set train.micro_batch=8, or add --resume-mode=fork"});
  }
  SECTION("a method that remembers items resumes too") {
    const std::string arguments =
        "train.checkpoint_every=10 method.forward=true method.controller=budget run.folder=";
    succeeded(tiny.mpirun(2, arguments + "known"));
    const std::string want = tiny.weights("known");
    forget_after(tiny.path() / "known", 20);
    succeeded(tiny.mpirun(2, arguments + "known --resume"));
    CHECK(tiny.weights("known") == want);
  }
  SECTION("the evaluation is that of one process") {
    const json alone = tiny.eval("whole/last");
    for (const json& line : lines)
      if (line["event"] == "eval" && line["step"] == 40) {
        CHECK(line["loss"].get<double>() == alone["eval_loss"].get<double>());
        CHECK(line["accuracy"].get<double>() == alone["eval_accuracy"].get<double>());
        CHECK(line["items"] == 64);
      }
  }
}

TEST_CASE("ranks: what cannot run on several ranks says so", "[mpi]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  struct Case {
    std::string line;
    int code;
    std::vector<std::string> says;
  };
  const std::string two = mpirun_of(2) + "vcas-train tiny.json run.folder=out ";
  const Case cases[] = {
      {mpirun_of(3) + "vcas-train tiny.json run.folder=out train.micro_batch=8",
       78,
       {"error: rank 0 (", "train.batch_size 16 cannot be shared by 3 ranks in micro-batches of 8",
        "hint: numbers of ranks that fit: 1, 2"}},
      {mpirun_of(2) + "vcas eval --model out",
       2,
       {"vcas eval runs in one process, and there are 2"}},
      {two + "--compare exact",
       2,
       {"comparisons, checks, profiles and --print-config run in one process"}},
      {two + "--print-config", 2, {"profiles and --print-config run in one process"}},
      {two + "--dry-run",
       2,
       {"comparisons, checks, profiles and --print-config run in one process"}},
      {two + "train.gradient_exchange=bf16",
       78,
       {"train.gradient_exchange must be \"f32\" with precision \"f32\""}},
      {two + "tune_products=true",
       78,
       {"tune_products must be false with 2 processes: each would choose for itself",
        "hint: set tune_products=false"}},
      {two + "method.controller=budget method.kept_items=by_norm",
       78,
       {"method.kept_items \"by_norm\" with 2 processes: those that keep few items would wait",
        "hint: set method.kept_items=fixed"}},
      {two + "nosuch.setting=1", 78, {"nosuch"}},
      {on_two_ranks("exec vcas-train tiny.json run.folder=out train.micro_batch=8",
                    "exec vcas-train tiny.json run.folder=out train.micro_batch=4"),
       78,
       {"rank 1 (", "settings/train/micro_batch is 4, not 8 as on rank 0",
        "hint: all ranks need the same program, settings and files"}},
      {on_two_ranks("exec vcas-train tiny.json run.folder=out",
                    "exec vcas-train tiny.json run.folder=out method.type=infobatch"),
       78,
       {"settings/method/type is \"infobatch\", not \"vcas\" as on rank 0"}},
      {on_two_ranks("exec vcas-train tiny.json run.folder=out",
                    "exec vcas-train tiny.json run.folder=out --resume"),
       78,
       {"another rank has --resume, and this one has not",
        "hint: give all ranks the same arguments"}},
      {on_two_ranks("exec vcas-train --resume out",
                    "exec vcas-train --resume out --resume-mode=fork"),
       78,
       {"another rank has --resume-mode=fork, and this one has not"}},
      {"SLURM_NTASKS=4 vcas-train tiny.json run.folder=out",
       69,
       {"SLURM_NTASKS=4, but this process would train alone", "srun --mpi=pmix"}},
      {"WORLD_SIZE=2 vcas-train tiny.json run.folder=out", 69, {"torchrun is not supported"}},
  };
  for (const Case& c : cases) {
    const Outcome outcome = tiny.shell(c.line);
    CAPTURE(c.line, outcome.err);
    CHECK(outcome.code == c.code);
    for (const std::string& text : c.says) CHECK(contains(outcome.err, text));
    CHECK_FALSE(fs::exists(tiny.path() / "out"));
  }
}

TEST_CASE("ranks: without the module MPI's processes are told what is missing", "[mpi]") {
  const TinyRun tiny;
  const fs::path program = tiny.path() / "vcas-train";
  fs::copy_file(VCAS_PROGRAM, program);
  write_text(tiny.path() / "line.sh",
             "OMPI_COMM_WORLD_SIZE=2 ./vcas-train tiny.json 2>err.txt; echo $? >code.txt");
  CHECK(std::system(("cd '" + tiny.path().string() + "' && sh line.sh").c_str()) == 0);
  CHECK(content(tiny.path() / "code.txt") == "69\n");
  const std::string said = content(tiny.path() / "err.txt");
  check_contains(said, {"libvcas_mpi.so cannot be loaded:\n  " + tiny.path().string(),
                        "Debian: libopenmpi-dev openmpi-bin"});
}

TEST_CASE("ranks: a signal to one rank stops all, after a save", "[mpi]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  REQUIRE(
      tiny.mpirun(2,
                  "run.folder=whole train.steps=4000 train.log_every=1 "
                  "train.eval_every=100000 & job=$!; while [ $(cat whole/metrics.jsonl | wc -l) "
                  "-lt 20 ]; do sleep 0.1; done; kill -USR2 $job; wait $job")
          .code == 75);
  const std::vector<std::int64_t> saved = saved_steps(tiny.path() / "whole");
  REQUIRE(saved.size() == 1);
  CHECK(contains(content(tiny.path() / "err.txt"), "stopped by SIGUSR2 at step"));
  CHECK_FALSE(contains(content(tiny.path() / "err.txt"), "rank 1"));
}

// VCAS_KILLS: of how many runs; 2.
TEST_CASE("ranks: a killed rank ends the run, which resumes to the same bits", "[mpi]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  const std::string arguments =
      "train.steps=1000 train.log_every=1 train.checkpoint_every=50 train.eval_every=500 ";
  succeeded(tiny.mpirun(2, arguments + "run.folder=whole"));
  const long kills = environment_number("VCAS_KILLS", 2);
  for (long i = 0; i < kills; ++i) {
    const long line = 100 + 500 * i / kills, rank = i * 5 % 3 % 2;
    const std::string folder = "broken" + std::to_string(i);
    const std::string wait_and_kill =
        " & job=$!; while [ $(cat " + folder + "/metrics.jsonl | wc -l) -lt " +
        std::to_string(line) + " ]; do sleep 0.02; done; kill -KILL $(pgrep -P $job | sed -n " +
        std::to_string(rank + 1) + "p); wait $job";
    CAPTURE(i, line, rank);
    const Outcome killed = tiny.mpirun(2, arguments + "run.folder=" + folder + wait_and_kill);
    INFO(killed.err);
    CHECK(killed.code == 137);
    CHECK(saved_steps(tiny.path() / folder).back() < 1000);
    succeeded(tiny.mpirun(2, arguments + "--resume run.folder=" + folder));
    CHECK(tiny.weights(folder) == tiny.weights("whole"));
    fs::remove_all(tiny.path() / folder);
  }
}

TEST_CASE("ranks: a rank that hangs ends the run", "[mpi]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  const Outcome hung = endless(tiny, 3, "kill -STOP $(pgrep -P $job | tail -1)");
  check_failure(hung, 69, {"no step, evaluation or checkpoint has ended for 3 s: a rank hangs"});
  CHECK_FALSE(contains(hung.err, "--resume"));
}

TEST_CASE("ranks: a job that was suspended for longer than the timeout goes on", "[mpi]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  const Outcome suspended =
      endless(tiny, 2,
              "kill -STOP $(pgrep -P $job); sleep 3; kill -CONT $(pgrep -P $job); sleep 3; "
              "kill -USR2 $job");
  INFO(suspended.err);
  CHECK(suspended.code == 75);
}

// The first half has one token an item, and takes less than the timeout. The second takes longer.
TEST_CASE("ranks: one that is done with its part of an evaluation waits for the others", "[mpi]") {
  if (lacks_mpi()) return;
  const TinyText tiny;
  std::string rows = "sentence\tlabel\n", longest;
  for (int i = 0; i < 500; ++i) longest += "a ";
  for (int i = 0; i < 1500; ++i) rows += "a\tgood\n";
  for (int i = 0; i < 1500; ++i) rows += longest + "\tbad\n";
  write_text(tiny.path() / "test.tsv", rows);
  const Outcome outcome =
      shell(tiny.path(), mpirun_of(2) +
                             "vcas-train tiny.json run.folder=out train.steps=1 model.width=64 "
                             "train.eval_batch=4 model.max_positions=512 "
                             "data.text.max_length=512 run.rank_timeout=2");
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  const json end = vcas::read_metrics(tiny.path() / "out/metrics.jsonl").back();
  if (end["totals"]["eval_seconds"] < 2.0) WARN("too fast to tell: rank 0 has not waited long");
}

TEST_CASE("ranks: a loss that is not finite ends all with a note", "[mpi]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  const Outcome outcome =
      tiny.mpirun(2, "run.folder=out schedule.learning_rate=1e30 optimizer.name=sgd");
  check_failure(outcome, 70, {"error: rank 0 (", "crash-"});
  CHECK_FALSE(contains(outcome.err, "rank 1 ("));
}

TEST_CASE("ranks: an evaluation that diverges on one rank ends all with a note", "[mpi]") {
  if (lacks_mpi()) return;
  const TinyText tiny;
  std::string rows = "sentence\tlabel\n";
  for (int i = 0; i < 15; ++i) rows += "a b\tgood\n";
  write_text(tiny.path() / "train.tsv", rows);
  write_text(tiny.path() / "test.tsv", rows + "d b\tgood\n");
  succeeded(tiny.train({"run.folder=first", "train.steps=1"}));
  // The word d overflows at this place, and all else does not.
  const fs::path weights = tiny.path() / "first/checkpoint-1/model.safetensors";
  const vcas::SafetensorsFile file(weights);
  const std::vector<float> large(16, 3e38f);
  std::deque<std::vector<std::byte>> changed;
  std::vector<vcas::StoredTensor> tensors;
  for (vcas::StoredTensor tensor : file.tensors()) {
    const bool words = tensor.name == "bert.embeddings.word_embeddings.weight";
    auto& bytes = changed.emplace_back(tensor.bytes.begin(), tensor.bytes.end());
    constexpr int kD = 8, kPlace = 1;
    if (words || tensor.name == "bert.embeddings.position_embeddings.weight")
      std::ranges::copy(std::as_bytes(std::span(large)),
                        bytes.begin() + (words ? kD : kPlace) * 16 * sizeof(float));
    tensor.bytes = bytes;
    tensors.push_back(tensor);
  }
  vcas::write_safetensors(weights, tensors);
  vcas::write_manifest(weights.parent_path());
  const Outcome outcome =
      shell(tiny.path(), mpirun_of(2) +
                             "vcas-train tiny.json run.folder=out train.steps=2 "
                             "model.pretrained=first");
  check_failure(outcome, 70, {"error: rank 0 (", "evaluation at step 2: loss is nan on rank 1"});
  CHECK(tiny.json("out/crash-2.json")["ranks"] == 2);
  CHECK_FALSE(contains(outcome.err, "error: rank 1 ("));
}

TEST_CASE("ranks: an exact step costs what it costs one process, however long texts are", "[mpi]") {
  if (lacks_mpi()) return;
  const TinyText tiny;
  const auto flops = [&](const std::string& launcher) {
    succeeded(shell(tiny.path(), launcher + "vcas-train tiny.json run.folder=out --overwrite "
                                            "train.steps=1 train.micro_batch=4"));
    const json start = vcas::read_metrics(tiny.path() / "out/metrics.jsonl").front();
    return std::pair(start["exact_step_flops"], start["padded_step_flops"]);
  };
  CHECK(flops("") == flops(mpirun_of(2)));
}

TEST_CASE("ranks: steps that leave a rank without items count as saved", "[mpi]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  succeeded(tiny.mpirun(2,
                        "run.folder=out data.synthetic.items=32 train.steps=200 train.batch_size=2 "
                        "train.checkpoint_every=100 method.type=infobatch method.prune_ratio=0.9 "
                        "method.prune_until=1"));
  const json end = lines_of(tiny.path() / "out").back();
  REQUIRE(end["event"] == "end");
  const double share = end["forward_share"];
  CHECK(share < 0.8);
  for (const char* saved : {"flops_saved", "formula_flops_saved", "formula_backward_flops_saved"}) {
    CAPTURE(saved);
    CHECK_THAT(end[saved].get<double>(), WithinAbs(1 - share, 1e-9));
  }
  forget_after(tiny.path() / "out", 100);
  succeeded(tiny.mpirun(2,
                        "run.folder=out data.synthetic.items=32 train.steps=200 train.batch_size=2 "
                        "train.checkpoint_every=100 method.type=infobatch method.prune_ratio=0.9 "
                        "method.prune_until=1 --resume"));
  CHECK(lines_of(tiny.path() / "out").back()["formula_flops_saved"] == end["formula_flops_saved"]);
}

TEST_CASE("ranks: what one rank lacks ends all with its code", "[mpi]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  fs::copy_file(tiny.path() / "tiny.json", tiny.path() / "other.json");
  check_failure(tiny.shell(on_two_ranks("exec vcas-train tiny.json run.folder=out",
                                        "exec vcas-train nosuch.json run.folder=out")),
                66, {"error: rank 1 (", "nosuch.json"});
  CHECK_FALSE(fs::exists(tiny.path() / "out"));
}
