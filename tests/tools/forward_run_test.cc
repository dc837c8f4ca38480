// Runs that drop items before the forward.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/metrics.h"
#include "tests/support/catch.h"
#include "tests/tools/tiny_text.h"

namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kForward = {"method.forward=true", "method.forward_ratio=0.5"};

const std::string kOtherItems =
    " was saved; what its method remembers is of other items\n"
    "  hint: bring the files back, or choose a method that remembers no items, such as vcas with "
    "method.forward=false\n";

std::vector<std::string> with_forward(const std::vector<std::string>& settings) {
  return with(settings, kForward);
}

}  // namespace

TEST_CASE("a run with SampleF tells what it keeps, and its own time is not known", "[forward]") {
  const TinyRun tiny;
  const Outcome outcome =
      tiny.train(with_forward({"run.folder=out", "train.steps=80", "method.update_every=20"}));
  INFO(outcome.err << outcome.out);
  REQUIRE(outcome.code == 0);
  CHECK(contains(outcome.err, " · forward keeps 0.5 of items seen before\n"));
  std::int64_t kept = 0, dropped = 0;
  for (const nlohmann::json& line : vcas::read_metrics(tiny.path() / "out/metrics.jsonl")) {
    if (line["event"] == "variance") CHECK(line["forward_ratio"] == 0.5);
    if (line["event"] == "end") {
      const double share = static_cast<double>(kept) / static_cast<double>(kept + dropped);
      CHECK_THAT(line["forward_share"].get<double>(), WithinRel(share, 1e-12));
      CHECK(line["totals"]["items"] == kept);
      CHECK(line["totals"]["dropped_items"] == dropped);
      CHECK(line["time_saved"].is_null());
      CHECK(line["flops_saved"] > 0.15);
      CHECK(contains(outcome.out, fmt::format("forward of {:.1f}% of items", 100 * share)));
    }
    if (line["event"] != "train") continue;
    CAPTURE(line["step"]);
    CHECK(line["items"].get<std::int64_t>() + line["dropped_items"].get<std::int64_t>() == 16);
    if (line["step"] <= 16) CHECK(line["dropped_items"] == 0);
    if (line["dropped_items"] > 0) {
      CHECK(line["exact"] == false);
      CHECK(line["time_saved"].is_null());
    }
    kept += line["items"].get<std::int64_t>();
    dropped += line["dropped_items"].get<std::int64_t>();
  }
  CHECK(dropped > 200);
  CHECK(noted_warnings(tiny.path() / "out/metrics.jsonl").empty());
}

TEST_CASE("a comparison with SampleF shows the items in the forward", "[forward]") {
  const TinyRun tiny;
  std::vector<std::string> arguments = {"compare", "tiny.json", "--folder", "twins",
                                        "method.controller=budget"};
  for (const std::string& setting : kForward) arguments.insert(arguments.end(), {"--set", setting});
  const Outcome outcome = run(tiny.path(), arguments);
  INFO(outcome.err << outcome.out);
  REQUIRE(outcome.code == 0);
  CHECK(contains(outcome.out, "items in the forward"));
  CHECK(contains(outcome.out, "added variance / V_s, SampleF"));
  const nlohmann::json result = tiny.json("twins/compare.json");
  CHECK(result["runs"][0]["forward_share"] == 1);
  CHECK(result["runs"][1]["forward_share"] < 0.9);
  CHECK_FALSE(result["runs"][0].contains("added_variance"));
  double forward = 0, exact = 0;
  for (const nlohmann::json& line : vcas::read_metrics(tiny.path() / "twins/vcas/metrics.jsonl")) {
    if (line["event"] != "variance" || 2 * line["step"].get<int>() < result["runs"][1]["steps"])
      continue;
    forward += line["v_f"].get<double>();
    exact += line["v_s"].get<double>();
  }
  CHECK_THAT(result["runs"][1]["added_variance"]["forward"].get<double>(),
             WithinRel(forward / exact, 1e-9));
  // What the run says of itself is what the twin measured.
  const nlohmann::json end = tiny.end_of("twins/vcas");
  CHECK_THAT(end["flops_saved"].get<double>(),
             WithinRel(result["saved"]["flops"].get<double>(), 1e-9));
}

TEST_CASE("a resumed run with SampleF has the bits of the whole run", "[forward]") {
  const TinyRun images;
  const TinyText texts;
  const auto check = [](const auto& tiny, const std::vector<std::string>& settings) {
    const auto arguments = [&](const std::vector<std::string>& more) {
      return with(with_forward(more), settings);
    };
    const Outcome whole = succeeded(tiny.train(arguments({"run.folder=whole"})));
    succeeded(tiny.train(arguments({"run.folder=parts"})));
    forget_after(tiny.path() / "parts", 20);
    const Outcome resumed = succeeded(tiny.train(arguments({"run.folder=parts", "--resume"})));
    CHECK(contains(resumed.err, "resuming parts/checkpoint-20"));
    for (const char* file : {"model", "optimizer", "method"}) {
      const std::string name = std::string("last/") + file + ".safetensors";
      CHECK(content(tiny.path() / "whole" / name) == content(tiny.path() / "parts" / name));
    }
  };
  check(images, {"train.micro_batch=6"});
  check(texts, {});
}

TEST_CASE("SampleF takes no norms of other data", "[forward]") {
  const TinyText tiny;
  succeeded(tiny.train(with_forward({"run.folder=out"})));
  std::string table = content(tiny.path() / "train.tsv");
  table.replace(table.find("a "), 2, "b ");
  write_text(tiny.path() / "train.tsv", table);
  const std::vector<std::string> fork = {"--resume", "out", "--resume-mode=fork", "train.steps=50"};
  check_failure(tiny.train(with_forward(fork)), 78, {kOtherItems});
  std::vector<std::string> without = fork;
  without.push_back("method.forward=false");
  succeeded(tiny.train(without));
}

TEST_CASE("InfoBatch takes no losses of other data") {
  const TinyText tiny;
  succeeded(tiny.train({"run.folder=out", "method.type=infobatch"}));
  std::string table = content(tiny.path() / "train.tsv");
  table.replace(table.find("a "), 2, "b ");
  write_text(tiny.path() / "train.tsv", table);
  const auto fork = [&](const char* method) {
    return tiny.train({"--resume", "out", "--resume-mode=fork", "train.steps=50", method});
  };
  check_failure(fork("method.type=infobatch"), 78, {kOtherItems});
  succeeded(fork("method.type=exact"));
}

TEST_CASE("SampleF says where it cannot work or saves nothing", "[forward]") {
  const TinyRun tiny;
  check_failure(tiny.train({"run.folder=out", "method.forward=true"}), 78,
                {"method.forward_ratio is missing"});
  check_failure(tiny.train(with_forward({"run.folder=out", "train.batch_size=1"})), 78,
                {"a step of one item has nothing to drop"});
  CHECK_FALSE(fs::exists(tiny.path() / "out"));

  succeeded(tiny.train(with_forward({"run.folder=out", "train.steps=16"})));
  CHECK(noted_warnings(tiny.path() / "out/metrics.jsonl") ==
        std::vector<std::string>{"method.forward drops nothing in a run of one epoch: it knows no "
                                 "item before it is seen"});

  const TinyText text;
  check_failure(text.train(with_forward(
                    {"data.type=mlm", "model.head=mlm", "data.text.train_file=corpus.txt",
                     "data.text.test_file=corpus.txt", "train.batch_size=2", "run.folder=out"})),
                78, {"method.forward: the loss has a term for each predicted word"});
}
