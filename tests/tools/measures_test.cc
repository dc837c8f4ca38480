#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/metrics.h"
#include "tests/support/catch.h"
#include "tests/tools/tiny_text.h"

namespace {

// What the model predicts of the rows of `table`, and what their labels are.
std::pair<std::vector<std::string>, std::vector<std::string>> predictions_and_labels(
    const TinyText& tiny, const std::string& folder, const std::string& table) {
  std::pair<std::vector<std::string>, std::vector<std::string>> both;
  std::string texts = "sentence\n", line;
  std::istringstream rows(content(tiny.path() / table));
  std::getline(rows, line);
  while (std::getline(rows, line)) {
    const std::size_t tab = line.find('\t');
    texts += line.substr(0, tab) + "\n";
    both.second.push_back(line.substr(tab + 1));
  }
  write_text(tiny.path() / "texts.tsv", texts);
  std::istringstream lines(
      tiny.vcas({"predict", "--model", folder + "/last", "--input", "texts.tsv"}).out);
  std::getline(lines, line);
  while (std::getline(lines, line)) both.first.push_back(line.substr(line.find('\t') + 1));
  REQUIRE(both.first.size() == both.second.size());
  return both;
}

double f1(const std::vector<std::string>& predictions, const std::vector<std::string>& labels,
          const std::string& positive) {
  double both = 0, either = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    both += predictions[i] == positive && labels[i] == positive;
    either += (predictions[i] == positive) + (labels[i] == positive);
  }
  return either > 0 ? 2 * both / either : 0;
}

}  // namespace

TEST_CASE("one's own table is measured as one likes", "[text][measures]") {
  const TinyText tiny;
  // Rows that no model should get right.
  write_text(tiny.path() / "test.tsv", TinyText::table(16) + "a a a c\tbad\na a c\tbad\n");
  const Outcome trained = succeeded(
      tiny.train({"run.folder=out", "train.steps=200", R"(train.measures=["f1","matthews"])"}));
  const auto [predictions, labels] = predictions_and_labels(tiny, "out", "test.tsv");
  const nlohmann::json end = tiny.end_of("out");
  CHECK_THAT(end["eval_f1"].get<double>(), WithinAbs(f1(predictions, labels, "good"), 1e-12));
  CHECK(end["eval_f1"] != 0.0);
  CHECK(end["eval_matthews"].is_number());
  CHECK_FALSE(end.contains("eval_accuracy"));
  CHECK(end["best_f1"].get<double>() >= end["eval_f1"].get<double>());
  CHECK(contains(trained.out, "  matthews "));
  const auto eval = [&](const std::string& setting) { return tiny.eval("out/last", {setting}); };
  CHECK(eval("seed=0")["eval_f1"] == end["eval_f1"]);
  CHECK_THAT(eval("train.positive_class=Bad")["eval_f1"].get<double>(),
             WithinAbs(f1(predictions, labels, "bad"), 1e-12));
  CHECK(f1(predictions, labels, "bad") != f1(predictions, labels, "good"));

  const Outcome compared =
      succeeded(tiny.vcas({"compare", "tiny.json", "--folder", "both", "train.steps=2",
                           R"(train.measures=["accuracy","f1"])"}));
  CHECK(contains(compared.out, "\ntest f1 "));
}

TEST_CASE("the best checkpoint is that of the measure that was asked for", "[text][measures]") {
  const TinyText tiny;
  const auto train = [&](const std::string& best) {
    succeeded(tiny.train({"run.folder=out", "--overwrite", "train.eval_every=4",
                          R"(train.measures=["accuracy","f1"])", "train.best_measure=" + best}));
    std::map<std::int64_t, double> values;
    for (const nlohmann::json& line : events_of(tiny.path() / "out/metrics.jsonl", "eval"))
      values[line["step"]] = line[best];
    REQUIRE(values.size() == 10);
    return values;
  };
  const auto by_value = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto losses = train("loss");
  const auto lowest = std::ranges::min_element(losses, by_value);
  CHECK(tiny.end_of("out")["best_step"] == lowest->first);
  CHECK(tiny.end_of("out")["best_loss"] == lowest->second);
  const auto scores = train("f1");
  const auto highest = std::ranges::max_element(scores, by_value);
  CHECK(tiny.end_of("out")["best_step"] == highest->first);
  CHECK(tiny.end_of("out")["best_f1"] == highest->second);
  CHECK(highest->first != lowest->first);
}

TEST_CASE("F1 of more than two classes is their mean, and top5 needs six", "[text][measures]") {
  const TinyText tiny;
  std::string rows = "sentence\tlabel\n";
  const std::string words[] = {"a", "b", "c", "d", "a b", "c d", "a a b"};
  for (int i = 0; i < 28; ++i) rows += fmt::format("{}\tclass{}\n", words[i % 7], i % 7);
  write_text(tiny.path() / "seven.tsv", rows);
  const std::vector<std::string> settings = {"run.folder=out",
                                             "--overwrite",
                                             "data.text.train_file=seven.tsv",
                                             "data.text.test_file=seven.tsv",
                                             "data.text.labels=[]",
                                             "train.steps=60"};
  const auto train = [&](const std::vector<std::string>& arguments) {
    return tiny.train(with(settings, arguments));
  };
  succeeded(train({R"(train.measures=["f1","top5","accuracy"])"}));
  const auto [predictions, labels] = predictions_and_labels(tiny, "out", "seven.tsv");
  double sum = 0;
  for (int k = 0; k < 7; ++k) sum += f1(predictions, labels, fmt::format("class{}", k));
  const nlohmann::json end = tiny.end_of("out");
  CHECK_THAT(end["eval_f1"].get<double>(), WithinAbs(sum / 7, 1e-12));
  CHECK(end["eval_top5"].get<double>() >= end["eval_accuracy"].get<double>());
  CHECK(end["eval_top5"].get<double>() > 0.5);
  CHECK_THAT(tiny.eval("out/last", {"train.positive_class=class3"})["eval_f1"].get<double>(),
             WithinAbs(f1(predictions, labels, "class3"), 1e-12));
}

TEST_CASE("images are measured likewise", "[measures]") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out", "data.synthetic.classes=8",
                        R"(train.measures=["top5","accuracy","f1","matthews"])"}));
  const nlohmann::json end = tiny.end_of("out");
  for (const char* name : {"eval_accuracy", "eval_f1", "eval_matthews"}) {
    CHECK(end[name].get<double>() > 0);
    CHECK(end["eval_top5"].get<double>() > end[name].get<double>());
  }
  CHECK(end.contains("best_top5"));
}

TEST_CASE("measures that the data do not have are refused before training", "[text][measures]") {
  const TinyText tiny;
  struct Case {
    std::vector<std::string> arguments;
    std::string says;
  };
  for (
      const Case& c : std::vector<Case>{
          {{R"(train.measures=["acuracy"])"},
           "train.measures[0] \"acuracy\" is not one of: accuracy, f1, matthews, top5, pearson, "
           "spearman"},
          {{R"(train.measures=["f1","f1"])"}, "train.measures has \"f1\" twice"},
          {{R"(train.measures=["pearson"])"},
           "train.measures has \"pearson\", which is not among accuracy, f1, matthews, top5, those "
           "of model.head \"classification\""},
          {{R"(train.measures=["f1"])", "model.head=regression", "data.text.labels=[]"},
           "train.measures has \"f1\", which is not among pearson, spearman, those of model.head "
           "\"regression\""},
          {{R"(train.measures=["f1"])", "model.head=mlm", "data.type=mlm", "data.text.labels=[]"},
           "train.measures has \"f1\", which is not among accuracy, perplexity, those of "
           "model.head \"mlm\""},
          {{R"(train.measures=["top5"])"},
           "train.measures has \"top5\", and the data have 2 classes\n  hint: of at most 5 classes "
           "every prediction is among the first 5\n"},
          {{"train.best_measure=f1"},
           "train.best_measure is \"f1\", and an evaluation has loss, accuracy\n  hint: "
           "train.measures names what is measured\n"},
          {{R"(train.measures=["f1"])", "train.positive_class=god"},
           "train.positive_class is \"god\", and the classes are bad, good\n"},
          {{"train.positive_class=good"},
           "train.positive_class is \"good\", and \"f1\" is not measured\n"}}) {
    std::vector<std::string> arguments = c.arguments;
    arguments.push_back("run.folder=bad");
    check_failure(tiny.train(arguments), 78, {c.says});
    CHECK_FALSE(std::filesystem::exists(tiny.path() / "bad"));
  }
}
