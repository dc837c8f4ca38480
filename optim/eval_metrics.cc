#include "optim/eval_metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace vcas {
namespace {

using Classes = std::span<const std::int32_t>;

template <class T>
void check_sizes(std::span<const T> a, std::span<const T> b) {
  VCAS_CHECK(!a.empty() && a.size() == b.size(), "a measure needs equally many values of both");
}

struct ClassCounts {
  double right = 0, predicted = 0, labelled = 0;
};

// Counts of each class up to the largest that occurs.
std::vector<ClassCounts> class_counts(Classes predictions, Classes labels) {
  check_sizes(predictions, labels);
  std::vector<ClassCounts> counts(
      1 + std::max(std::ranges::max(predictions), std::ranges::max(labels)));
  for (std::size_t i = 0; i < labels.size(); ++i) {
    counts[labels[i]].right += predictions[i] == labels[i];
    ++counts[predictions[i]].predicted;
    ++counts[labels[i]].labelled;
  }
  return counts;
}

double f1_of(const ClassCounts& of) {
  const double either = of.predicted + of.labelled;
  return either > 0 ? 2 * of.right / either : 0;
}

std::vector<double> ranks(std::span<const double> values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return values[i]; });
  std::vector<double> rank(values.size());
  for (std::size_t begin = 0, end; begin < order.size(); begin = end) {
    end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    for (std::size_t i = begin; i < end; ++i)
      rank[order[i]] = 0.5 * static_cast<double>(begin + end - 1);
  }
  return rank;
}

}  // namespace

double accuracy(Classes predictions, Classes labels) {
  check_sizes(predictions, labels);
  double right = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) right += predictions[i] == labels[i];
  return right / static_cast<double>(labels.size());
}

double f1_score(Classes predictions, Classes labels, std::int32_t positive) {
  const std::vector<ClassCounts> counts = class_counts(predictions, labels);
  return positive < std::ssize(counts) ? f1_of(counts[positive]) : 0;
}

double macro_f1_score(Classes predictions, Classes labels) {
  double sum = 0, classes = 0;
  for (const ClassCounts& of : class_counts(predictions, labels)) {
    sum += f1_of(of);
    classes += of.predicted + of.labelled > 0;
  }
  return sum / classes;
}

std::int64_t count_among_largest(std::span<const float> logits, std::int64_t classes,
                                 Classes labels, std::int64_t k) {
  VCAS_CHECK(std::ssize(logits) == classes * std::ssize(labels), "a row of logits for each label");
  std::int64_t count = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const std::span<const float> row = logits.subspan(i * classes, classes);
    const auto own = row.begin() + labels[i];
    const auto larger = std::count_if(row.begin(), own, [&](float x) { return x >= *own; }) +
                        std::count_if(own, row.end(), [&](float x) { return x > *own; });
    count += larger < k;
  }
  return count;
}

double matthews_correlation(Classes predictions, Classes labels) {
  const auto total = static_cast<double>(labels.size());
  double right = 0, both = 0, predicted_squares = 0, label_squares = 0;
  for (const ClassCounts& of : class_counts(predictions, labels)) {
    right += of.right;
    both += of.predicted * of.labelled;
    predicted_squares += of.predicted * of.predicted;
    label_squares += of.labelled * of.labelled;
  }
  const double spread = (total * total - predicted_squares) * (total * total - label_squares);
  return spread > 0 ? (right * total - both) / std::sqrt(spread) : 0;
}

double pearson_correlation(std::span<const double> a, std::span<const double> b) {
  check_sizes(a, b);
  // The mean of equal values may be off by rounding, and they would seem to vary.
  const auto is_constant = [](std::span<const double> values) {
    return std::ranges::min(values) == std::ranges::max(values);
  };
  if (is_constant(a) || is_constant(b)) return 0;
  const auto mean = [](std::span<const double> values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  };
  const double mean_a = mean(a), mean_b = mean(b);
  double both = 0, squares_a = 0, squares_b = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    both += (a[i] - mean_a) * (b[i] - mean_b);
    squares_a += (a[i] - mean_a) * (a[i] - mean_a);
    squares_b += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return squares_a > 0 && squares_b > 0 ? both / std::sqrt(squares_a * squares_b) : 0;
}

double spearman_correlation(std::span<const double> a, std::span<const double> b) {
  return pearson_correlation(ranks(a), ranks(b));
}

std::optional<std::vector<std::int32_t>> mixed_up_classes(Classes predictions, Classes labels,
                                                          std::int32_t classes) {
  constexpr std::int32_t kMostClasses = 8;  // 40,320 orders
  constexpr std::size_t kLeastOfClass = 8;  // fewer items are right by chance
  if (classes < 2 || classes > kMostClasses || labels.size() < kLeastOfClass * classes ||
      accuracy(predictions, labels) * classes >= 1)
    return std::nullopt;
  std::vector<double> counts(classes * classes);  // of label (row) and prediction (column)
  for (std::size_t i = 0; i < labels.size(); ++i) ++counts[labels[i] * classes + predictions[i]];
  std::vector<std::int32_t> meaning(classes), best;
  std::iota(meaning.begin(), meaning.end(), 0);
  double most = -1;
  do {
    double right = 0;
    for (std::int32_t k = 0; k < classes; ++k) right += counts[meaning[k] * classes + k];
    if (right > most) {
      most = right;
      best = meaning;
    }
  } while (std::next_permutation(meaning.begin(), meaning.end()));
  // One class for all items is right that often, whatever it is called.
  double commonest = 0;
  for (std::int32_t label = 0; label < classes; ++label)
    commonest = std::max(commonest, std::accumulate(counts.begin() + label * classes,
                                                    counts.begin() + (label + 1) * classes, 0.0));
  const auto items = static_cast<double>(labels.size());
  if (most < 0.5 * (items + commonest)) return std::nullopt;
  return best;
}

}  // namespace vcas
