// What the program says of mistakes in data, models and methods that others write.
#include "tests/support/catch.h"
#include "tests/tools/program.h"

namespace {

class FaultyRun : public TemporaryFolder {
 public:
  FaultyRun() {
    write_text(path() / "faulty.json", R"({
  "threads": 1,
  "data": {"type": "faulty"}, "model": {"type": "faulty"}, "method": {"type": "exact"},
  "train": {"steps": 8, "batch_size": 8}
})");
  }

  Outcome vcas(const std::vector<std::string>& arguments) const {
    return Process(path(), arguments, {}, VCAS_FAULTY_PARTS).wait();
  }
  Outcome train(const std::vector<std::string>& settings) const {
    return vcas(with({"train", "faulty.json", "run.folder=out", "--overwrite"}, settings));
  }
};

}  // namespace

TEST_CASE("a mistake in parts of one's own ends a run before its first step") {
  struct Case {
    std::string setting;
    int code;
    std::string error;
  };
  const FaultyRun faulty;
  for (const Case& c : std::vector<Case>{
           {"data.fault=no_items", 78,
            "error: data.type \"faulty\" opened no items\n"
            "  hint: DataKind::open returns them in OpenedData::items\n"},
           {"data.fault=other_classes", 65,
            "error: the test data have 4 classes: a, b, c, d, and those of training 4 classes: 0, "
            "1, 2, 3\n  hint: Dataset::class_names is the same for both; "
            "DataRequest::known_classes has those of training\n"},
           {"data.fault=fewer_classes", 65,
            "error: the test data have 3 classes: 0, 1, 2, and those of training 4 classes: "},
           {"data.fault=unknown_label", 65,
            "error: item 7 of the test data has no label\n"
            "  hint: evaluations need one of each item; vcas predict needs none\n"},
           {"model.fault=more_logits", 78,
            "error: Model::logits is [1 an item, 5], and the data have 4 classes\n"
            "  hint: the logits of a classification are [1 an item, classes]; ModelKind::build is "
            "told the number of classes\n"},
           {"model.fault=no_logits", 78,
            "error: Model::logits is not set\n"
            "  hint: ModelKind::build sets it to the value that evaluations read\n"},
           {"model.fault=unknown_head", 78,
            "error: model.type \"faulty\" has the head \"ranking\", which is not among "
            "classification, regression, mlm, lm\n"
            "  hint: ModelKind::head says how the model is evaluated (models/model.h)\n"},
           {"model.fault=regression", 78,
            "model.type \"faulty\" does not fit data.type \"faulty\": it learns numbers, and "
            "these have classes (DataFacts::labels)\n"},
           {"data.fault=numbers", 78,
            "model.type \"faulty\" does not fit data.type \"faulty\": it learns classes, and "
            "these have numbers (DataFacts::labels)\n"},
           {"data.fault=unknown_measure", 78,
            "data.type \"faulty\" has the measure \"bogus\", which is not among accuracy, f1, "
            "matthews, top5, those of model.head \"classification\"\n"},
           {"method.type=faulty", 78,
            "error: method.type \"faulty\" made no method\n"
            "  hint: MethodKind::make returns one (optim/methods/method.h)\n"}}) {
    CAPTURE(c.setting);
    check_failure(faulty.train({c.setting}), c.code, {c.error});
    CHECK_FALSE(std::filesystem::exists(faulty.path() / "out"));
  }
}

TEST_CASE("a model of texts without a setting of its head is told by its type") {
  const FaultyRun faulty;
  const auto refusal = [&](const std::string& fault, const std::string& end) {
    check_failure(faulty.train({"data.fault=text", "model.fault=" + fault}), 78,
                  {"error: model.type \"faulty\" does not fit data.type \"faulty\": " + end});
  };
  refusal("text_regression", "it learns numbers, and these have classes (DataFacts::labels)\n");
  refusal("text_words", "the head mlm and data of masked words go together\n");
}

TEST_CASE("a classifier without an accuracy of its own is measured by its logits") {
  const FaultyRun faulty;
  const auto accuracy = [&](const char* fault) {
    succeeded(faulty.train({std::string("model.fault=") + fault}));
    return vcas::read_metrics(faulty.path() / "out/metrics.jsonl")
        .back()["eval_accuracy"]
        .get<double>();
  };
  const double own = accuracy("none");
  CHECK(own > 0);
  CHECK(accuracy("no_accuracy") == own);
}

TEST_CASE("a run warns once of data without files, and of a model without sampled weights") {
  const FaultyRun faulty;
  const auto warnings = [&](const std::vector<std::string>& settings) {
    succeeded(faulty.train(settings));
    return noted_warnings(faulty.path() / "out/metrics.jsonl");
  };
  const auto count = [](const std::vector<std::string>& all, const char* begin) {
    return std::ranges::count_if(all, [&](const std::string& w) { return w.starts_with(begin); });
  };
  constexpr const char* kFiles =
      "data.type \"faulty\" names no file of data.folder that it has read "
      "(Dataset::set_sources): a resumed run will not notice a change";
  constexpr const char* kWeights =
      "no linear layer of the model has a sampled weight, so VCAS measures nothing";
  const std::vector<std::string> all = warnings({"data.folder=.", "method.type=vcas"});
  CHECK(count(all, kFiles) == 1);
  CHECK(count(all, kWeights) == 1);
  CHECK(count(all, "all keep ratios stay") == 0);
  const std::vector<std::string> none = warnings({});
  CHECK(count(none, kFiles) + count(none, kWeights) == 0);
}

TEST_CASE("a method of one's own may leave items out without weights") {
  const FaultyRun faulty;
  for (const char* fault : {"no_weights", "zero_weights"}) {
    CAPTURE(fault);
    succeeded(faulty.train({"method.type=faulty", std::string("method.fault=") + fault}));
    const auto end = vcas::read_metrics(faulty.path() / "out/metrics.jsonl").back();
    CHECK(end["flops_saved"].get<double>() == 0.5);
  }
}

TEST_CASE("a regression has one logit an item") {
  const FaultyRun faulty;
  check_failure(faulty.train({"data.fault=numbers", "model.fault=regression"}), 78,
                {"error: Model::logits is [1 an item, 4], and the model learns one number of an "
                 "item\n  hint: the logits of a regression are [1 an item, 1]\n"});
}

TEST_CASE("a method that is not at rest after the last step ends the run") {
  const FaultyRun faulty;
  check_failure(faulty.train({"method.type=faulty", "method.fault=never_rests"}), 78,
                {"error: method.type \"faulty\" is not at rest after the last step, 8\n"
                 "  hint: Method::at_rest is true then: a measurement begins only if it can end by "
                 "Training::total_steps (optim/methods/method.h)\n"});
}

TEST_CASE("savings of a model in which nothing is counted are unknown") {
  const FaultyRun faulty;
  const Outcome outcome = succeeded(
      faulty.train({"method.type=faulty", "method.fault=none", "model.fault=no_products"}));
  CHECK(contains(outcome.out, "BP FLOPs unknown  train FLOPs unknown"));
  CHECK(contains(outcome.err, "bp_flops_saved=unknown"));
  CHECK_FALSE(contains(outcome.out + outcome.err, "nan"));
  const auto end = vcas::read_metrics(faulty.path() / "out/metrics.jsonl").back();
  CHECK(end["flops_saved"].is_null());
  succeeded(faulty.vcas({"plan", "faulty.json", "model.fault=no_products"}));
  CHECK(end["formula_flops_saved"] == 0);
}

TEST_CASE("check: more draws are no advice where slopes are wrong") {
  const FaultyRun faulty;
  const Outcome outcome =
      faulty.vcas({"check", "faulty.json", "--draws", "2", "model.fault=wrong_slopes"});
  check_failure(outcome, 1,
                {"error: exact gradients differ from differences of the loss by ",
                 "hint: a layer of your own: docs/layer_api.md, \"The test\"; else it is a bug in "
                 "vcas, please report it\n"});
  CHECK_FALSE(contains(outcome.err, "--draws"));
}
