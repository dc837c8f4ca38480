#include "tools/evaluation.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
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

// What the measures are computed from, batch by batch.
class Collected {
 public:
  Collected(const RunConfig& config, const RunData& data, const Dataset& items)
      : data_(data), classes_(items.classes()), masked_(config.model.kind->head() == "mlm") {}

  // Whether `add` needs the logits: not of masked words, of which accuracy alone is measured.
  bool needs_logits() const { return !masked_; }
  bool may_be_mixed_up() const { return classes_ > 0 && classes_ <= kMostMixedUp; }

  void add(const Batch& batch, const Evaluation& part, const std::vector<float>& logits) {
    right_ += part.accuracy * static_cast<double>(part.terms);
    terms_ += static_cast<double>(part.terms);
    targets_.insert(targets_.end(), batch.targets.begin(), batch.targets.end());
    if (masked_) return;
    if (classes_ == 0) {
      numbers_.insert(numbers_.end(), logits.begin(), logits.end());
      return;
    }
    const std::vector<std::int32_t> predictions = predicted_classes(logits, classes_);
    predictions_.insert(predictions_.end(), predictions.begin(), predictions.end());
    labels_.insert(labels_.end(), batch.labels.begin(), batch.labels.end());
    top_ += count_among_largest(logits, classes_, batch.labels, kTop);
  }

  double measure(const std::string& name) const {
    if (name == "accuracy") return right_ / terms_;
    if (name == "pearson") return pearson_correlation(numbers_, targets_);
    if (name == "spearman") return spearman_correlation(numbers_, targets_);
    if (name == "matthews") return matthews_correlation(predictions_, labels_);
    if (name == "top5") return static_cast<double>(top_) / static_cast<double>(labels_.size());
    VCAS_CHECK(name == "f1", name);
    return data_.positive ? f1_score(predictions_, labels_, *data_.positive)
                          : macro_f1_score(predictions_, labels_);
  }

  const std::vector<std::int32_t>& predictions() const { return predictions_; }
  const std::vector<std::int32_t>& labels() const { return labels_; }

 private:
  const RunData& data_;
  std::int64_t classes_;
  bool masked_;
  std::vector<std::int32_t> predictions_, labels_;
  std::vector<double> numbers_, targets_;
  std::int64_t top_ = 0;
  double right_ = 0, terms_ = 0;
};

std::optional<TestResult> evaluate_on(const Dataset& items, const RunConfig& config,
                                      const RunData& data, const EvaluateBatch& evaluate,
                                      const std::function<bool()>& stop) {
  Loader loader(items, eval_loader_options(config, items));
  Collected collected(config, data, items);
  std::vector<float> logits;  // of a batch
  TestResult result;
  double terms = 0;
  for (std::int64_t i = 0; i < loader.steps_per_epoch(); ++i) {
    if (stop()) return std::nullopt;
    const Batch& batch = loader.next();
    logits.clear();
    const Evaluation part = evaluate(batch, collected.needs_logits() ? &logits : nullptr);
    collected.add(batch, part, logits);
    result.items += part.items;
    result.loss += part.loss * static_cast<double>(part.terms);
    terms += static_cast<double>(part.terms);
  }
  result.loss /= terms;
  for (const std::string& name : data.measures)
    result.measures.push_back({name, collected.measure(name)});
  if (collected.may_be_mixed_up())
    result.warning =
        mix_up_warning(collected.predictions(), collected.labels(), items.class_names());
  return result;
}

}  // namespace

bool is_better(const std::string& measure, double value, double than) {
  return measure.starts_with("loss") ? value < than : value > than;
}

double TestResult::value(const std::string& name) const {
  if (name == "loss") return loss;
  const auto found = std::ranges::find(measures, name, &Measure::name);
  VCAS_CHECK(found != measures.end(), name);
  return found->value;
}

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
