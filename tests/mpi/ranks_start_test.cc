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

// 16 images to train on and 16 to test, of two classes.
void add_images(const fs::path& folder) {
  for (const char* part : {"train", "val"})
    for (const char* name : {"x", "y"})
      for (int i = 0; i < 8; ++i) {
        const fs::path to = folder / part / name / (std::to_string(i) + ".jpg");
        fs::create_directories(to.parent_path());
        fs::copy_file(fs::path(VCAS_SOURCE_DIR) / "tests/golden/images/red.jpg", to);
      }
}

// A run of one process with checkpoints of the steps 20 and 40.
const std::string kSaves = "train.micro_batch=8 train.checkpoint_every=20 ";

}  // namespace

TEST_CASE("ranks: other pretrained weights on a rank are refused", "[mpi]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  fs::create_directories(tiny.path() / "a");
  fs::create_directories(tiny.path() / "b");
  for (const std::string folder : {"a", "b"}) {
    succeeded(tiny.shell("cd " + folder +
                         " && vcas-train ../tiny.json run.folder=own train.steps=2 seed=" +
                         (folder == "a" ? "1" : "2") + " && vcas export --model own --to hf"));
  }
  const struct {
    std::string pretrained, says;
  } cases[] = {{"own", "weights/own/checkpoint-2/files/config.json/crc32 is "},
               {"hf", "weights/hf/model.safetensors is "}};
  for (const auto& [pretrained, says] : cases) {
    CAPTURE(pretrained);
    check_failure(
        tiny.shell(in_two_folders("run.folder=out train.steps=2 model.pretrained=" + pretrained)),
        78, {"rank 1 (", says});
    CHECK_FALSE(fs::exists(tiny.path() / "a/out"));
  }
}

TEST_CASE("ranks: all go on from the checkpoint that rank 0 finds", "[mpi]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  const fs::path a = tiny.path() / "a/out", b = tiny.path() / "b/out";
  const std::string arguments = kSaves + "run.folder=out --resume";
  succeeded(tiny.shell("vcas-train tiny.json run.folder=whole " + kSaves));
  copy_folder(tiny.path() / "whole", a);

  SECTION("where another rank sees a newer one") {
    forget_after(a, 20);
    copy_folder(tiny.path() / "whole", b);
    const Outcome outcome = succeeded(tiny.shell(in_two_folders(arguments)));
    CHECK(contains(outcome.err, "resuming out/checkpoint-20 at step 20/40"));
    CHECK(saved_steps(a) == std::vector<std::int64_t>{20, 40});
  }
  SECTION("where it is damaged on another rank") {
    copy_folder(tiny.path() / "whole", b);
    fs::resize_file(b / "checkpoint-40/model.safetensors", 1000);
    check_failure(tiny.shell(in_two_folders(arguments)), 65,
                  {"error: rank 1 (", "out/checkpoint-40/model.safetensors: 1000 bytes"});
  }
  SECTION("where another rank has another one of the same step") {
    succeeded(tiny.shell(
        "mkdir b && cd b && vcas-train ../tiny.json seed=1 train.steps=20 run.folder=out " +
        kSaves));
    forget_after(a, 20);
    fs::copy(a / "checkpoint-20/config.json", b / "checkpoint-20/config.json",
             fs::copy_options::overwrite_existing);
    std::string manifest = content(b / "checkpoint-20/manifest.json");
    json files = json::parse(manifest),
         right = json::parse(content(a / "checkpoint-20/manifest.json"));
    files["files"]["config.json"] = right["files"]["config.json"];
    write_text(b / "checkpoint-20/manifest.json", files.dump());
    check_failure(tiny.shell(in_two_folders(arguments)), 78,
                  {"checkpoint/out/checkpoint-20/files/model.safetensors/crc32 is "});
  }
}

TEST_CASE("ranks: a run that was replacing another when it was killed is settled once", "[mpi]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  REQUIRE(tiny.mpirun(4, "run.folder=whole train.micro_batch=4 train.checkpoint_every=20").code ==
          0);
  const std::string want = tiny.weights("whole");
  forget_after(tiny.path() / "whole", 20);
  for (int i = 0; i < 3; ++i) {
    const std::string folder = "out" + std::to_string(i);
    copy_folder(tiny.path() / "whole", tiny.path() / folder);
    succeeded(tiny.shell("cd " + folder + " && mkdir replaced && mv checkpoint-20 *.json* *.txt " +
                         "replaced && cd .. && " + mpirun_of(4) + "vcas-train tiny.json --resume " +
                         "train.micro_batch=4 train.checkpoint_every=20 run.folder=" + folder));
    CHECK(tiny.weights(folder) == want);
  }
}

TEST_CASE("ranks: the folder of the run is rank 0's alone", "[mpi]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  fs::create_directories(tiny.path() / "a");
  fs::create_directories(tiny.path() / "b/out");
  write_text(tiny.path() / "b/out/own.txt", "not of a run");
  succeeded(tiny.shell(in_two_folders("run.folder=out train.steps=2")));
  CHECK(fs::exists(tiny.path() / "a/out/last"));
  CHECK(content(tiny.path() / "b/out/own.txt") == "not of a run");
}

TEST_CASE("ranks: a file that differs is named by its path", "[mpi]") {
  if (lacks_mpi()) return;
  const TinyText tiny;
  for (const char* folder : {"a", "b"}) {
    fs::create_directories(tiny.path() / folder / "d");
    for (const char* file : {"vocab.txt", "train.tsv", "test.tsv"})
      fs::copy_file(tiny.path() / file, tiny.path() / folder / "d" / file);
  }
  write_text(tiny.path() / "b/d/test.tsv", TinyText::table(15));
  check_failure(
      shell(tiny.path(),
            in_two_folders("run.folder=out data.text.train_file=d/train.tsv "
                           "data.text.test_file=d/test.tsv data.text.vocabulary=d/vocab.txt")),
      78, {"data/d/test.tsv is \"xxh3:"});
}

TEST_CASE("ranks: images that one rank leaves out are named", "[mpi]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  for (const char* rank : {"a", "b"}) add_images(tiny.path() / rank / "img");
  const fs::path damaged = tiny.path() / "b/img/train/y/3.jpg";
  write_text(damaged, std::string(fs::file_size(damaged), 'x'));
  check_failure(tiny.shell(in_two_folders(
                    "run.folder=out data.type=image_folder data.folder=img data.image.size=8 "
                    "data.skip_bad_rows=true train.batch_size=4 train.steps=4 method.type=exact")),
                78, {"left_out/0 is \"img/train/y/3.jpg"});
}

TEST_CASE("ranks: each has threads of its own, and a resume keeps them", "[mpi]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  const auto train = [&](int first, int second, const std::string& resume) {
    const auto with_threads = [&](int threads) {
      return "exec env OMP_NUM_THREADS=" + std::to_string(threads) +
             " vcas-train tiny.json threads=0 model.width=64 run.folder=out train.steps=2 "
             "train.checkpoint_every=1" +
             resume;
    };
    succeeded(tiny.shell(on_two_ranks(with_threads(first), with_threads(second))));
    const json state = tiny.json("out/last/trainer_state.json");
    CHECK(state["threads"] == json{1, 2});
    return tiny.weights("out");
  };
  const std::string weights = train(1, 2, "");
  forget_after(tiny.path() / "out", 1);
  CHECK(train(2, 1, " --resume") == weights);
}

TEST_CASE("ranks: images that any rank has read are in the checkpoint", "[mpi]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  add_images(tiny.path() / "img");
  succeeded(tiny.mpirun(
      2,
      "run.folder=out data.type=image_folder data.folder=img data.image.size=8 train.batch_size=4 "
      "train.steps=4 method.type=exact"));
  const std::string hashes = content(tiny.path() / "out/last/images.hashes");
  REQUIRE(hashes.size() == 32 * sizeof(std::uint64_t));
  for (std::size_t i = 0; i < hashes.size(); i += sizeof(std::uint64_t)) {
    CAPTURE(i);
    CHECK(hashes.substr(i, sizeof(std::uint64_t)) != std::string(sizeof(std::uint64_t), '\0'));
  }
}

TEST_CASE("ranks: threads are kept for as many ranks only", "[mpi]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  const std::string arguments = kSaves + "threads=0 run.folder=out ";
  REQUIRE(tiny.shell("OMP_NUM_THREADS=3 vcas-train tiny.json train.steps=20 " + arguments).code ==
          0);
  REQUIRE(tiny.json("out/last/trainer_state.json")["threads"] == json{3});
  const Outcome one = tiny.shell("vcas-train tiny.json --resume train.steps=20 " + arguments);
  INFO(one.err);
  CHECK(contains(one.err, "  threads  3 as before, for the same bits; 1 are usable"));
  const Outcome two = succeeded(tiny.mpirun(2, "--resume train.steps=20 " + arguments));
  CHECK(contains(two.err, "cpu (1 threads) · 2 ranks"));
  CHECK_FALSE(contains(two.err, "as before"));
}

TEST_CASE("ranks: one micro-batch a step cannot be shared by a resume", "[mpi]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  succeeded(tiny.shell("vcas-train tiny.json run.folder=out train.steps=20"));
  for (const std::string resume : {"vcas-train --resume out",
                                   "vcas-train tiny.json run.folder=out "
                                   "train.steps=20 --resume"}) {
    const Outcome outcome = tiny.shell(mpirun_of(2) + resume);
    CAPTURE(resume);
    check_failure(outcome, 78,
                  {"out/checkpoint-20: a step is one micro-batch (train.micro_batch is 0), which "
                   "2 ranks cannot share bit for bit",
                   "hint: go on in one process, or add --resume-mode=fork"});
    CHECK_FALSE(contains(outcome.err, "differs from the checkpoint"));
  }
}

TEST_CASE("ranks: one of several single processes may check a run", "[mpi]") {
  const RanksRun tiny;
  for (const char* mode : {"--validate", "--print-config", "--dry-run"}) {
    const Outcome outcome =
        tiny.shell(std::string("SLURM_NTASKS=4 vcas-train tiny.json run.folder=out ") + mode);
    CAPTURE(mode, outcome.err);
    CHECK(outcome.code == 0);
  }
}

TEST_CASE("ranks: what all would print is printed once", "[mpi]") {
  if (lacks_mpi()) return;
  const RanksRun tiny;
  const auto count = [](const std::string& text, const std::string& part) {
    int found = 0;
    for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
    return found;
  };
  CHECK(count(tiny.shell(mpirun_of(2) + "vcas --version").out, "vcas ") == 1);
  CHECK(count(tiny.shell(mpirun_of(2) + "vcas-train --help").out, "--resume-mode") == 1);
}
