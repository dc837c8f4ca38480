#include "tools/evaluation.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/loader.h"
#include "optim/eval_metrics.h"

namespace vcas {
namespace {

// Empty unless other numbers for the classes would make most predictions right.
std::string mix_up_warning(const std::vector<std::int32_t>& predictions,
                           const std::vector<std::int32_t>& labels,
                           const std::vector<std::string>& names) {
  const auto classes = static_cast<std::int32_t>(names.size());
  const auto meaning = mixed_up_classes(predictions, labels, classes);
  if (!meaning) return {};
  std::vector<std::string> moved;
  for (std::size_t k = 0; k < names.size(); ++k)
    if (const auto meant = static_cast<std::size_t>((*meaning)[k]); meant != k)
      moved.push_back(fmt::format("\"{}\" where \"{}\" is right", names[k], names[meant]));
  return fmt::format(
      "the classes seem to be in another order than the model's: it mostly predicts {}",
      fmt::join(moved, ", "));
}

double measure(const RunData& data, const std::string& name, const std::vector<float>& logits,
               const std::vector<std::int32_t>& labels, const std::vector<double>& targets) {
  const std::vector<double> numbers(logits.begin(), logits.end());
  if (name == "pearson") return pearson_correlation(numbers, targets);
  if (name == "spearman") return spearman_correlation(numbers, targets);
  const auto predictions = predicted_classes(logits, data.test->classes());
  return name == "f1" ? f1_score(predictions, labels, data.positive)
                      : matthews_correlation(predictions, labels);
}

std::optional<TestResult> evaluate_on(const Dataset& items, const RunConfig& config,
                                      const RunData& data, const EvaluateBatch& evaluate,
                                      const std::function<bool()>& stop) {
  Loader loader(items, eval_loader_options(config, items));
  std::vector<float> logits;
  const bool accuracy_alone = data.metrics == std::vector<std::string>{"accuracy"};
  const bool may_be_mixed_up =
      config.model.head == "classification" && items.classes() <= kMostMixedUp;
  std::vector<std::int32_t> labels;
  std::vector<double> targets;
  TestResult result;
  double terms = 0, right = 0;
  for (std::int64_t i = 0; i < loader.steps_per_epoch(); ++i) {
    if (stop()) return std::nullopt;
    const Batch& batch = loader.next();
    const Evaluation part = evaluate(batch, accuracy_alone && !may_be_mixed_up ? nullptr : &logits);
    const auto weight = static_cast<double>(part.terms);
    result.items += part.items;
    result.loss += part.loss * weight;
    right += part.accuracy * weight;
    terms += weight;
    labels.insert(labels.end(), batch.labels.begin(), batch.labels.end());
    targets.insert(targets.end(), batch.targets.begin(), batch.targets.end());
  }
  result.loss /= terms;
  for (const std::string& name : data.metrics)
    result.measures.push_back(
        {name, name == "accuracy" ? right / terms : measure(data, name, logits, labels, targets)});
  if (may_be_mixed_up)
    result.warning =
        mix_up_warning(predicted_classes(logits, items.classes()), labels, items.class_names());
  return result;
}

}  // namespace

std::string TestResult::text() const {
  std::string text = fmt::format("loss {:.4f}", loss);
  for (const Measure& measure : measures)
    text += fmt::format("  {} {:.4f}", measure.name, measure.value);
  return text;
}

nlohmann::ordered_json TestResult::to_json(const std::string& prefix) const {
  nlohmann::ordered_json json = {{prefix + "loss", loss}};
  for (const Measure& measure : measures) json[prefix + measure.name] = measure.value;
  return json;
}

std::vector<std::string> measure_names(const RunData& data) {
  std::vector<std::string> names = data.metrics;
  if (!data.mismatched) return names;
  names.push_back("loss_mm");
  for (const std::string& name : data.metrics) names.push_back(name + "_mm");
  return names;
}

std::optional<TestResult> evaluate_tests(const RunConfig& config, const RunData& data,
                                         const EvaluateBatch& evaluate,
                                         const std::function<bool()>& stop) {
  std::optional<TestResult> result = evaluate_on(*data.test, config, data, evaluate, stop);
  if (!result || !data.mismatched) return result;
  const auto second = evaluate_on(*data.mismatched, config, data, evaluate, stop);
  if (!second) return second;
  result->items += second->items;
  result->measures.push_back({"loss_mm", second->loss});
  for (const Measure& measure : second->measures)
    result->measures.push_back({measure.name + "_mm", measure.value});
  return result;
}

std::vector<float> predict_items(const RunConfig& config, const Dataset& items,
                                 const EvaluateBatch& evaluate) {
  LoaderOptions options = eval_loader_options(config, items);
  options.limit = 0;
  Loader loader(items, options);
  std::vector<float> logits;
  for (std::int64_t i = 0; i < loader.steps_per_epoch(); ++i) evaluate(loader.next(), &logits);
  return logits;
}

std::vector<std::int32_t> predicted_classes(const std::vector<float>& logits,
                                            std::int64_t classes) {
  std::vector<std::int32_t> predictions;
  for (auto row = logits.begin(); row != logits.end(); row += classes)
    predictions.push_back(static_cast<std::int32_t>(std::max_element(row, row + classes) - row));
  return predictions;
}

}  // namespace vcas
