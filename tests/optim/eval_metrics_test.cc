#include "optim/eval_metrics.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/catch.h"

using namespace vcas;

namespace {

using Ids = std::vector<std::int32_t>;

Ids classes(std::int32_t (*f)(std::int32_t)) {
  Ids ids;
  for (std::int32_t i = 0; i < 40; ++i) ids.push_back(f(i));
  return ids;
}

const Ids kPredictions = classes([](std::int32_t i) { return (i * i * 7 + i) % 3; });
const Ids kLabels = classes([](std::int32_t i) { return (i * 5 + i * i / 4) % 3; });

Ids binary(Ids ids) {
  for (std::int32_t& id : ids) id = id > 0;
  return ids;
}

}  // namespace

TEST_CASE("accuracy, F1 and Matthews by hand", "[metrics]") {
  // 3 true and 1 false positives, 2 false and 4 true negatives.
  const Ids predictions = {1, 1, 1, 1, 0, 0, 0, 0, 0, 0};
  const Ids labels = {1, 1, 1, 0, 1, 1, 0, 0, 0, 0};
  CHECK_THAT(accuracy(predictions, labels), WithinAbs(0.7, 1e-15));
  CHECK_THAT(f1_score(predictions, labels, 1), WithinAbs(2 * 0.75 * 0.6 / 1.35, 1e-15));
  CHECK_THAT(matthews_correlation(predictions, labels),
             WithinAbs((3 * 4 - 1 * 2) / std::sqrt(4.0 * 5 * 5 * 6), 1e-15));
  CHECK(f1_score(Ids{0, 0}, Ids{0, 0}, 1) == 0);
  CHECK(f1_score(Ids{0, 0}, Ids{0, 0}, 0) == 1);
  CHECK(matthews_correlation(Ids{1, 1, 1}, Ids{0, 1, 1}) == 0);
  CHECK(matthews_correlation(Ids{0, 1, 2}, Ids{0, 1, 2}) == 1);
}

// The constants are those of scikit-learn 1.9.1 and SciPy 1.17.1.
TEST_CASE("class measures agree with scikit-learn", "[metrics]") {
  CHECK_THAT(accuracy(kPredictions, kLabels), WithinAbs(0.35, 1e-15));
  CHECK_THAT(matthews_correlation(kPredictions, kLabels), WithinAbs(-0.07820548803814821, 1e-15));
  CHECK_THAT(matthews_correlation(binary(kPredictions), binary(kLabels)),
             WithinAbs(-0.2022792022792023, 1e-15));
  CHECK_THAT(f1_score(binary(kPredictions), binary(kLabels), 1), WithinAbs(0.35, 1e-15));
}

TEST_CASE("the mean F1 is over the classes that occur", "[metrics]") {
  CHECK_THAT(macro_f1_score(kPredictions, kLabels), WithinAbs(0.25392156862745097, 1e-15));
  Ids without = kPredictions;
  std::ranges::replace(without, 2, 0);
  CHECK_THAT(macro_f1_score(without, kLabels), WithinAbs(0.16352201257861634, 1e-15));
  Ids far = kPredictions, far_labels = kLabels;
  std::ranges::replace(far, 2, 7);
  std::ranges::replace(far_labels, 2, 7);
  CHECK_THAT(macro_f1_score(far, far_labels), WithinAbs(0.25392156862745097, 1e-15));
  CHECK(macro_f1_score(Ids{3, 3}, Ids{3, 3}) == 1);
  CHECK_THAT(macro_f1_score(Ids{0, 1}, Ids{0, 0}), WithinAbs(1.0 / 3, 1e-15));  // 2/3 and 0
}

TEST_CASE("labels among the largest logits agree with scikit-learn", "[metrics]") {
  std::vector<float> logits;
  Ids labels;
  for (int i = 0; i < 40; ++i) {
    for (int k = 0; k < 9; ++k)
      logits.push_back(static_cast<float>((i * 37 + k * 11 + i * k * 4) % 101));
    labels.push_back((i * i + 3 * i) % 9);
  }
  CHECK(count_among_largest(logits, 9, labels, 1) == 5);
  CHECK(count_among_largest(logits, 9, labels, 3) == 15);
  CHECK(count_among_largest(logits, 9, labels, 5) == 21);
  CHECK(count_among_largest(logits, 9, labels, 9) == 40);
  // Equal ones go by their class: a model that always says the same knows nothing.
  const std::vector<float> equal(9, 0.5f);
  for (std::int32_t k = 0; k < 9; ++k)
    CHECK(count_among_largest(equal, 9, Ids{k}, 5) == (k < 5 ? 1 : 0));
}

TEST_CASE("correlations agree with SciPy, ties included", "[metrics]") {
  std::vector<double> a, b;
  for (int i = 0; i < 40; ++i) {
    a.push_back((i * 37 % 23) / 4.0 - 1);
    b.push_back(((i * i * 11 + 3 * i) % 19) / 2.0 + 0.3 * (i * 37 % 23));
  }
  CHECK_THAT(pearson_correlation(a, b), WithinAbs(0.6338388100056167, 1e-14));
  CHECK_THAT(spearman_correlation(a, b), WithinAbs(0.6150378390865765, 1e-14));
  const std::vector<double> constant(40, 3.0);
  CHECK(pearson_correlation(a, constant) == 0);
  CHECK(spearman_correlation(constant, b) == 0);
  const std::vector<double> tenths(3, 0.1);  // their mean is not 0.1 to the bit
  CHECK(pearson_correlation(tenths, tenths) == 0);
  CHECK_THAT(pearson_correlation(a, a), WithinAbs(1, 1e-15));
}

TEST_CASE("mixed-up classes are noticed, poor predictions are not", "[metrics]") {
  // The labels under another order of the names, a tenth of them wrong.
  const Ids meaning = {1, 2, 0};
  Ids predictions, labels;
  for (std::int32_t i = 0; i < 300; ++i) {
    predictions.push_back(i % 3);
    labels.push_back(i % 10 == 0 ? i % 3 : meaning[i % 3]);
  }
  CHECK(accuracy(predictions, labels) < 0.11);
  CHECK(mixed_up_classes(predictions, labels, 3) == meaning);
  CHECK_FALSE(mixed_up_classes(labels, labels, 3));
  CHECK_FALSE(mixed_up_classes(Ids(300, 1), labels, 3));
  CHECK_FALSE(mixed_up_classes(predictions, labels, 9));
  Ids noise;
  for (std::int32_t i = 0; i < 300; ++i) noise.push_back((i * i / 7 + i / 5) % 3);
  CHECK_FALSE(mixed_up_classes(noise, labels, 3));
  // As good as chance, and better than chance in another order, but not by half of what is left.
  const auto often = [](const Ids& few) {
    Ids many;
    for (int i = 0; i < 40; ++i) many.insert(many.end(), few.begin(), few.end());
    return many;
  };
  CHECK_FALSE(mixed_up_classes(often({0, 2, 1}), often({0, 1, 2}), 3));
  CHECK_FALSE(mixed_up_classes(often({1, 1, 1, 0, 0}), Ids(200, 0), 2));
  // Nor is one class for all, where another is the commonest.
  CHECK_FALSE(mixed_up_classes(Ids(160, 1), often({0, 0, 0, 1}), 2));
  // Classes that do not occur keep their order.
  CHECK(mixed_up_classes(often({1, 0}), often({0, 1}), 8) == Ids{1, 0, 2, 3, 4, 5, 6, 7});
  // Few items are right in some order by chance.
  CHECK_FALSE(mixed_up_classes(Ids{1}, Ids{0}, 2));
  CHECK_FALSE(mixed_up_classes(Ids{1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1},
                               Ids{0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0}, 2));
}
