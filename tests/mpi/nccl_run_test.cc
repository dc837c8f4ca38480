// Runs of several ranks that exchange by NCCL: the emulator, with a library that stands for it.
#include "tests/mpi/mpirun.h"

namespace fs = std::filesystem;

namespace {

const std::string kSteps = "device=emu train.steps=4 train.eval_every=100 ";
const std::string kByNccl = "VCAS_NCCL='" VCAS_FAKE_NCCL "' ";

}  // namespace

TEST_CASE("ranks: a run by NCCL has the bits of one by way of the host", "[mpi][nccl]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    const std::string program = mpirun_of(ranks) + "vcas-train tiny.json --overwrite " + kSteps;
    const Outcome host = succeeded(tiny.shell(program + "run.folder=host"));
    const Outcome nccl = succeeded(tiny.shell(kByNccl + program + "run.folder=nccl"));
    CHECK(tiny.weights("nccl") == tiny.weights("host"));
  }
}

TEST_CASE("ranks: without NCCL, and where it fails, a run ends with 69", "[mpi][nccl]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  const std::string program = mpirun_of(2) + "vcas-train tiny.json run.folder=out " + kSteps;
  const struct {
    std::string environment;
    bool trained;
    std::string says;
  } cases[] = {
      {"VCAS_NCCL=/nowhere/libnccl.so.2 ", false, "NCCL, which cannot be loaded:\n  /nowhere/lib"},
      {kByNccl + "VCAS_FAKE_NCCL_VERSION=21605 ", false, "is NCCL 2.16, and 2.18 is the oldest"},
      {kByNccl + "VCAS_FAKE_NCCL_FAIL=9 ", true, "system error (call 9 was to fail)"},
  };
  for (const auto& [environment, trained, says] : cases) {
    CAPTURE(environment);
    check_failure(tiny.shell(environment + program), 69, {says, "hint: "});
    CHECK(fs::exists(tiny.path() / "out") == trained);
  }
}

TEST_CASE("ranks: a rank that hangs leaves NCCL, and ends the run", "[mpi][nccl]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  check_failure(
      tiny.shell(
          kByNccl + mpirun_of(2) +
          "vcas-train tiny.json run.folder=out device=emu train.steps=100000 train.log_every=1 "
          "run.rank_timeout=5 train.eval_every=1000000 & job=$!; "
          "while [ $(cat out/metrics.jsonl | wc -l) -lt 4 ]; do sleep 0.1; done; "
          "kill -STOP $(pgrep -P $job | tail -1); wait $job"),
      69, {"no step, evaluation or checkpoint has ended for 5 s: a rank hangs"});
}
