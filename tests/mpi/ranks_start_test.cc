// What the ranks of a run have in common before it, where they find other files.
#include <nlohmann/json.hpp>

#include "tests/mpi/mpirun.h"
#include "tests/support/catch.h"
#include "tests/tools/tiny_text.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

void copy_folder(const fs::path& from, const fs::path& to) {
  fs::create_directories(to.parent_path());
  fs::copy(from, to, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
}

// A run of one process with checkpoints of the steps 20 and 40.
const std::string kSaves = "train.micro_batch=8 train.checkpoint_every=20 ";

}  // namespace

TEST_CASE("ranks: the folder of the run is rank 0's alone", "[mpi]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  fs::create_directories(tiny.path() / "a");
  fs::create_directories(tiny.path() / "b/out");
  write_text(tiny.path() / "b/out/own.txt", "not of a run");
  const Outcome outcome = tiny.shell(in_two_folders("run.folder=out train.steps=2"));
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(fs::exists(tiny.path() / "a/out/last"));
  CHECK(content(tiny.path() / "b/out/own.txt") == "not of a run");
}
