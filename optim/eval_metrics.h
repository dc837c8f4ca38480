// Measures of predictions against labels. All are computed in f64.
// A measure of empty input is an internal error; a count of it is 0.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace vcas {

// The share of equal entries.
double accuracy(std::span<const std::int32_t> predictions, std::span<const std::int32_t> labels);

// Harmonic mean of precision and recall of class `positive`.
// 0 if it was neither predicted nor right.
double f1_score(std::span<const std::int32_t> predictions, std::span<const std::int32_t> labels,
                std::int32_t positive);

// The mean of f1_score over the classes that occur on either side.
double macro_f1_score(std::span<const std::int32_t> predictions,
                      std::span<const std::int32_t> labels);

// How many labels are among the k largest of their rows of `logits` [labels, classes].
// Among equal logits that of the lower class counts as the larger one.
std::int64_t count_among_largest(std::span<const float> logits, std::int64_t classes,
                                 std::span<const std::int32_t> labels, std::int64_t k);

// Matthews' correlation of any number of classes (Gorodkin, 2004).
// 0 if either side has one class only.
double matthews_correlation(std::span<const std::int32_t> predictions,
                            std::span<const std::int32_t> labels);

// 0 if either side is constant.
double pearson_correlation(std::span<const double> a, std::span<const double> b);

// Pearson's correlation of the ranks. Equal values share their mean rank.
double spearman_correlation(std::span<const double> a, std::span<const double> b);

// A sign of mixed-up class names: the renumbering (predicted -> meant) that fits the labels best.
// Given only if the accuracy is below chance: 1 / classes.
// The renumbered accuracy must be at least halfway from the share of the commonest label to 1.
// Nothing for other than 2 to 8 classes, or for fewer than eight items a class.
std::optional<std::vector<std::int32_t>> mixed_up_classes(std::span<const std::int32_t> predictions,
                                                          std::span<const std::int32_t> labels,
                                                          std::int32_t classes);

}  // namespace vcas
