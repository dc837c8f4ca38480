// Runs on texts that were stopped, and go on or may not.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/content_hash.h"
#include "core/files.h"
#include "tests/support/catch.h"
#include "tests/tools/tiny_text.h"

namespace fs = std::filesystem;

#ifdef VCAS_FILE_FAULTS
TEST_CASE("a signal ends tokenising; a run stopped before its first step is saved", "[text]") {
  const TinyText tiny;
  const auto stopped = [&] {
    std::vector<std::string> environment = kCache;
    environment.insert(environment.end(),
                       {"LD_PRELOAD=" VCAS_FILE_FAULTS, "VCAS_SIGNAL_AT=vocab.txt"});
    return run(tiny.path(), {"vcas-train", "--config", "tiny.json", "run.folder=out"}, environment);
  };
  check_failure(stopped(), 75, {"stopped by SIGTERM before there was anything to save\n"});
  CHECK_FALSE(fs::exists(tiny.path() / "out"));

  succeeded(tiny.train({"run.folder=other", "train.steps=1"}));  // keeps the tokens
  const Outcome ready = stopped();
  INFO(ready.err);
  CHECK(ready.code == 75);
  CHECK(fs::exists(tiny.path() / "out/checkpoint-0"));
  CHECK(fs::exists(tiny.path() / "out/last"));
  CHECK_FALSE(fs::exists(fs::symlink_status(tiny.path() / "out/best")));
  // Whether tokens are kept is no part of what is trained.
  succeeded(tiny.train({"run.folder=out", "--resume", "data.text.cache=false"}));
}
#endif

TEST_CASE("a text run that is resumed has the bits of the whole run", "[text]") {
  const TinyText tiny;
  for (const std::string more : {"data.type=text", "data.type=mlm", "data.type=lm"}) {
    std::vector<std::string> settings = {more};
    if (more != "data.type=text") {
      settings.push_back(more == "data.type=mlm" ? "model.head=mlm" : "model.type=gpt");
      settings.push_back("data.text.train_file=corpus.txt");
      settings.push_back("data.text.test_file=corpus.txt");
      settings.push_back("train.batch_size=2");
    }
    const auto with = [&](const std::vector<std::string>& arguments) {
      return ::with(arguments, settings);
    };
    const Outcome whole = succeeded(tiny.train(with({"run.folder=whole", "--overwrite"})));
    succeeded(tiny.train(with({"run.folder=parts", "--overwrite"})));
    forget_after(tiny.path() / "parts", 20);
    const Outcome resumed = succeeded(tiny.train(with({"run.folder=parts", "--resume"})));
    CHECK(contains(resumed.err, "resuming parts/checkpoint-20"));
    CHECK(content(tiny.path() / "whole/last/model.safetensors") ==
          content(tiny.path() / "parts/last/model.safetensors"));
  }
}

TEST_CASE("a checkpoint that has its files by the hash before XXH3 goes on", "[text]") {
  const TinyText tiny;
  succeeded(tiny.train({"run.folder=out"}));
  const fs::path out = tiny.path() / "out";
  fs::remove_all(out / "checkpoint-40");
  const fs::path file = out / "checkpoint-20/trainer_state.json";
  nlohmann::json state = nlohmann::json::parse(content(file));
  for (const char* name : {"train.tsv", "test.tsv"}) {
    CHECK(contains(state["data"][name], "xxh3:"));
    vcas::ContentHash hash;
    hash.add(content(tiny.path() / name));
    state["data"][name] = fmt::format("{:016x}", hash.value());
  }
  write_text(file, state.dump());
  vcas::write_manifest(out / "checkpoint-20");
  const std::string before = content(tiny.path() / "test.tsv");
  write_text(tiny.path() / "test.tsv", before + "c\tbad\n");
  check_failure(tiny.train({"run.folder=out", "--resume"}), 78,
                {"error: test.tsv has changed since out/checkpoint-20 was saved;"});
  write_text(tiny.path() / "test.tsv", before);
  succeeded(tiny.train({"run.folder=out", "--resume"}));
}

TEST_CASE("a run does not go on with other data or another vocabulary", "[text]") {
  const TinyText tiny;
  succeeded(tiny.train({"run.folder=out"}));
  forget_after(tiny.path() / "out", 20);
  const auto resume = [&] { return tiny.train({"run.folder=out", "--resume"}); };
  for (const auto& [file, more] :
       {std::pair("train.tsv", "c\tgood\n"), std::pair("test.tsv", "c\tbad\n")}) {
    const std::string before = content(tiny.path() / file);
    write_text(tiny.path() / file, before + more);
    check_message(
        resume(), 78,
        fmt::format("error: {} has changed since out/checkpoint-20 was saved; this run would "
                    "not be an exact continuation\n  hint: bring the files back, or add "
                    "--resume-mode=fork to start a new run from these weights and this "
                    "optimizer state\n",
                    file));
    CHECK_FALSE(fs::exists(tiny.path() / "out/checkpoint-40"));
    succeeded(
        tiny.train({"run.folder=fork", "--overwrite", "--resume", "out", "--resume-mode=fork"}));
    write_text(tiny.path() / file, before);
  }
  // Too few rows for a batch.
  const std::string rows = content(tiny.path() / "train.tsv");
  write_text(tiny.path() / "train.tsv", TinyText::table(7));
  CHECK(contains(resume().err, "error: train.tsv has changed since out/checkpoint-20 was saved;"));
  write_text(tiny.path() / "train.tsv", rows);
  // Other words for the same rows.
  const std::string vocabulary = content(tiny.path() / "vocab.txt");
  write_text(tiny.path() / "vocab.txt", vocabulary.substr(0, vocabulary.find("##b")) + "##c\n");
  check_failure(resume(), 78, {"error: vocab.txt has changed since out/checkpoint-20 was saved"});
  write_text(tiny.path() / "vocab.txt", vocabulary);
  succeeded(resume());
}
