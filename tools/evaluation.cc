#include "tools/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <numbers>
#include <numeric>

#include "core/error.h"
#include "data/loader.h"
#include "optim/eval_metrics.h"

namespace vcas {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Measure, name, value)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TestResult, items, loss, measures, warning)

namespace {

constexpr const char* kBitsPerByte = "bits_per_byte";

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

// What the measures are computed from.
struct Counts {
  std::vector<double> loss, right, terms;      // [batch]: sums over the terms, and their number
  std::int64_t items = 0, top = 0, bytes = 0;  // bytes: of the text of the predicted tokens
  std::vector<std::int32_t> predictions, labels;
  std::vector<double> numbers, targets;

  // `other`: the batches behind.
  void append(const Counts& other) {
    const auto join = [](auto& own, const auto& its) {
      own.insert(own.end(), its.begin(), its.end());
    };
    join(loss, other.loss);
    join(right, other.right);
    join(terms, other.terms);
    items += other.items;
    top += other.top;
    bytes += other.bytes;
    join(predictions, other.predictions);
    join(labels, other.labels);
    join(numbers, other.numbers);
    join(targets, other.targets);
  }
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Counts, loss, right, terms, items, top, bytes, predictions,
                                   labels, numbers, targets)

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// Collects them, batch by batch.
class Collected {
 public:
  Collected(const RunConfig& config, const RunData& data, const Dataset& items)
      : data_(data), classes_(items.classes()), words_(config.model.kind->learns_words()) {}

  // Whether `add` needs the logits: not of words, of which accuracy alone is measured.
  bool needs_logits() const { return !words_; }

  void add(const Batch& batch, const Evaluation& part, const std::vector<float>& logits) {
    const auto terms = static_cast<double>(part.terms);
    counts_.items += part.items;
    counts_.loss.push_back(part.loss * terms);
    counts_.right.push_back(part.accuracy * terms);
    counts_.terms.push_back(terms);
    counts_.targets.insert(counts_.targets.end(), batch.targets.begin(), batch.targets.end());
    if (words_) return add_words(batch);
    if (classes_ == 0) {
      counts_.numbers.insert(counts_.numbers.end(), logits.begin(), logits.end());
      return;
    }
    const std::vector<std::int32_t> predictions = predicted_classes(logits, classes_);
    counts_.predictions.insert(counts_.predictions.end(), predictions.begin(), predictions.end());
    counts_.labels.insert(counts_.labels.end(), batch.labels.begin(), batch.labels.end());
    counts_.top += count_among_largest(logits, classes_, batch.labels, kTop);
  }

  // Rank 0 gets what all have collected, in the order of ranks.
  void gather(Ranks& ranks) {
    if (ranks.size() == 1) return;
    const std::vector<nlohmann::json> parts = gather_json(ranks, counts_);
    counts_ = {};
    for (const nlohmann::json& part : parts) counts_.append(part);
  }

  TestResult result(const std::vector<std::string>& class_names) const {
    TestResult result{.items = counts_.items, .loss = sum_of(counts_.loss) / sum_of(counts_.terms)};
    for (const std::string& name : data_.measures) result.measures.push_back({name, measure(name)});
    result.warning = mix_up_warning(counts_.predictions, counts_.labels, class_names);
    return result;
  }

 private:
  // The separators between documents are no text.
  void add_words(const Batch& batch) {
    if (std::ranges::count(data_.measures, kBitsPerByte) == 0) return;
    const std::int32_t separator = data_.tokenizer->find_separator();
    for (const std::int32_t token : batch.masked_labels)
      if (token != separator) counts_.bytes += std::ssize(data_.tokenizer->decode({&token, 1}));
  }

  double measure(const std::string& name) const {
    const Counts& c = counts_;
    if (name == "perplexity") return std::exp(sum_of(c.loss) / sum_of(c.terms));
    if (name == kBitsPerByte)
      return sum_of(c.loss) / (std::numbers::ln2 * static_cast<double>(c.bytes));
    // Not every model of classes counts hits (Model::has_accuracy).
    if (name == "accuracy" && !words_) return accuracy(c.predictions, c.labels);
    if (name == "accuracy") return sum_of(c.right) / sum_of(c.terms);
    if (name == "pearson") return pearson_correlation(c.numbers, c.targets);
    if (name == "spearman") return spearman_correlation(c.numbers, c.targets);
    if (name == "matthews") return matthews_correlation(c.predictions, c.labels);
    if (name == "top5") return static_cast<double>(c.top) / static_cast<double>(c.labels.size());
    VCAS_CHECK(name == "f1", name);
    return data_.positive ? f1_score(c.predictions, c.labels, *data_.positive)
                          : macro_f1_score(c.predictions, c.labels);
  }

  const RunData& data_;
  std::int64_t classes_;
  bool words_;
  Counts counts_;
};

// Throws on all ranks what has befallen the first of some. Rank 0 has the folder to note it.
[[noreturn]] void fail_on_all(Ranks& ranks, const std::optional<Error>& mine) {
  const std::vector<nlohmann::json> all = gather_json(
      ranks, mine ? nlohmann::json{mine->what(), mine->hint()} : nlohmann::json::array());
  nlohmann::json first;
  for (std::size_t rank = 0; rank < all.size() && first.empty(); ++rank)
    if (!all[rank].empty())
      first = {fmt::format("{} on rank {}", all[rank][0].get<std::string>(), rank), all[rank][1]};
  first = broadcast_json(ranks, first);
  throw Error(ExitCode::kDiverged, first[0], first[1]);
}

std::optional<TestResult> evaluate_on(const Dataset& items, const RunConfig& config,
                                      const RunData& data, const EvaluateBatch& evaluate,
                                      const std::function<bool()>& stop, Ranks& ranks) {
  const LoaderOptions options = eval_loader_options(config);
  const auto [rank, size, local_rank, local_size] = ranks.place();
  const std::int64_t batches = (items.size() + options.batch - 1) / options.batch;
  const std::int64_t first = batches * rank / size, last = batches * (rank + 1) / size;
  Loader loader(items, options, first);
  Collected collected(config, data, items);
  std::vector<float> logits;  // of a batch
  std::optional<Error> diverged;
  const auto evaluate_next = [&] {
    const Batch& batch = loader.next();
    logits.clear();
    const Evaluation part = evaluate(batch, collected.needs_logits() ? &logits : nullptr);
    collected.add(batch, part, logits);
  };
  // Ranks wait for each other at every batch: one that is done alone would seem to hang.
  for (std::int64_t i = 0; i * size < batches; ++i) {
    const bool stopped = stop();
    try {
      if (!stopped && first + i < last) evaluate_next();
    } catch (const Error& error) {
      if (error.code() != ExitCode::kDiverged || size == 1) throw;
      diverged = error;
    }
    const double most = largest(ranks, diverged ? 2 : stopped ? 1 : 0);
    if (most > 1) fail_on_all(ranks, diverged);
    if (most > 0) return std::nullopt;
  }
  collected.gather(ranks);
  TestResult result;
  if (ranks.is_first()) result = collected.result(items.class_names());
  return size == 1 ? result : broadcast_json(ranks, result).get<TestResult>();
}

}  // namespace

bool lower_is_better(const std::string& measure) {
  return measure.starts_with("loss") || measure == "perplexity" || measure == kBitsPerByte;
}

bool is_better(const std::string& measure, double value, double than) {
  return lower_is_better(measure) ? value < than : value > than;
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
                                         const std::function<bool()>& stop, Ranks& ranks) {
  std::optional<TestResult> result = evaluate_on(*data.test, config, data, evaluate, stop, ranks);
  if (!result || !data.mismatched) return result;
  const auto second = evaluate_on(*data.mismatched, config, data, evaluate, stop, ranks);
  if (!second) return second;
  result->items += second->items;
  result->measures.push_back({"loss_mm", second->loss});
  for (const Measure& measure : second->measures)
    result->measures.push_back({measure.name + "_mm", measure.value});
  return result;
}

void predict_items(const RunConfig& config, const Dataset& items, const EvaluateBatch& evaluate,
                   const std::function<void(const std::vector<float>& logits)>& use) {
  Loader loader(items, eval_loader_options(config));
  std::vector<float> logits;
  for (std::int64_t i = 0; i < loader.steps_per_epoch(); ++i) {
    logits.clear();
    evaluate(loader.next(), &logits);
    use(logits);
  }
}

std::vector<std::int32_t> predicted_classes(const std::vector<float>& logits,
                                            std::int64_t classes) {
  std::vector<std::int32_t> predictions;
  for (auto row = logits.begin(); row != logits.end(); row += classes)
    predictions.push_back(static_cast<std::int32_t>(std::max_element(row, row + classes) - row));
  return predictions;
}

}  // namespace vcas
