// Runs that end before their last step, or leave steps out: train.patience and
// optimizer.skip_deviations.
#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/tools/program.h"

namespace fs = std::filesystem;

namespace {

// Its test loss is at its best after a few evaluations: the labels of training are noise.
struct Overfitting : TinyRun {
  const std::vector<std::string> settings = {"run.folder=out",
                                             "train.steps=400",
                                             "train.eval_every=10",
                                             "train.best_measure=loss",
                                             "train.patience=3",
                                             "data.synthetic.label_noise=0.9",
                                             "method.type=exact",
                                             "schedule.kind=constant",
                                             "model.dropout=0",
                                             "train.keep_checkpoints=100",
                                             "schedule.learning_rate=0.01"};

  Outcome run_it(const std::vector<std::string>& more = {}) const {
    return train(with(settings, more));
  }
  std::vector<nlohmann::json> events(const std::string& name) const {
    return events_of(path() / "out/metrics.jsonl", name);
  }
};

}  // namespace

TEST_CASE("ending: a run whose evaluations do not improve ends, and resumes to the same end") {
  const Overfitting run;
  const Outcome outcome = succeeded(run.run_it());
  const std::vector<nlohmann::json> evaluations = run.events("eval");
  const nlohmann::json end = run.events("end").at(0);
  REQUIRE(evaluations.size() > 3);
  REQUIRE(evaluations.size() < 40);
  CHECK(end["stopped_early"] == true);
  CHECK(end["train_loss"].is_null());
  const nlohmann::json& best = evaluations[evaluations.size() - 4];
  CHECK(end["best_step"] == best["step"]);
  for (std::size_t ago = 0; ago < 4; ++ago) {
    CHECK(evaluations[evaluations.size() - 1 - ago]["evaluations_since_best"] == 3 - ago);
    CHECK(evaluations[evaluations.size() - 1 - ago]["loss"] >= best["loss"]);
  }
  succeeded(::run(run.path(), {"report", "out"}));
  const std::string page = content(run.path() / "out/report.html");
  for (const auto& [key, value] : best.items())
    CHECK(contains(page, "test " + key + ": last, best") == (key == "loss" || key == "accuracy"));
  const std::int64_t last = evaluations.back()["step"];
  CHECK(end["step"] == last);
  CHECK(saved_steps(run.path() / "out").back() == last);
  CHECK(contains(outcome.err, "stopping at step " + std::to_string(last) + " of 400: loss of "));
  CHECK(contains(outcome.out, "stopped before the last tenth of the steps"));

  // A finished run stays as it is. One that was killed before its end ends there.
  const std::string weights = run.weights("out");
  succeeded(run.run_it({"--resume"}));
  CHECK(saved_steps(run.path() / "out").back() == last);
  for (const std::int64_t ago : {10, 30}) {
    forget_after(run.path() / "out", last - ago);
    succeeded(run.run_it({"--resume"}));
    CHECK(run.weights("out") == weights);
    CHECK(run.events("end").back()["step"] == last);
  }
  succeeded(::run(run.path(), {"report", "out"}));
}

TEST_CASE("ending: runs are compared after equal steps") {
  const Overfitting run;
  check_failure(::run(run.path(), {"compare", "tiny.json", "--set", "train.patience=2"}), 78,
                {"train.patience may end it early"});
}

TEST_CASE("ending: skipped steps are noted, and a resumed run skips the same ones") {
  const TinyRun tiny;
  // Few deviations, so that there are outliers at all.
  const std::vector<std::string> settings = {"run.folder=out", "train.steps=120",
                                             "train.eval_every=60", "train.batch_size=4",
                                             "optimizer.skip_deviations=1.5"};
  const auto train = [&](const std::vector<std::string>& more) {
    return tiny.train(with(more, settings));
  };
  const auto skipped = [&] {
    std::vector<std::int64_t> steps;
    for (const nlohmann::json& line : events_of(tiny.path() / "out/metrics.jsonl", "train")) {
      CHECK((line["clip_factor"] == 0) == line["skipped"].get<bool>());
      if (line["skipped"] == true) steps.push_back(line["step"]);
    }
    return steps;
  };
  const Outcome outcome = succeeded(train({}));
  const std::vector<std::int64_t> steps = skipped();
  const std::string weights = tiny.weights("out");
  REQUIRE(steps.size() > 1);
  CHECK(steps.front() > 50);
  REQUIRE(steps.back() > 60);
  CHECK(contains(outcome.err, "warning: step " + std::to_string(steps.back()) + " was skipped: "));
  CHECK(contains(outcome.out, "skipped steps: " + std::to_string(steps.size()) + "\n"));
  forget_after(tiny.path() / "out", 60);
  succeeded(train({"--resume"}));
  CHECK(skipped() == steps);
  CHECK(tiny.weights("out") == weights);
  CHECK(tiny.end_of("out")["totals"]["skipped_steps"] == steps.size());
}
