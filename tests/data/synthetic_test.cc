#include "data/synthetic.h"

#include <cmath>
#include <map>

#include "data/wordpiece.h"
#include "tests/data/data_files.h"

using namespace vcas;
using Catch::Matchers::WithinAbs;

namespace {

std::vector<float> values_of(const Dataset& data, std::int64_t item) {
  Batch batch;
  data.append(item, {}, batch);
  return batch.values;
}

std::vector<std::vector<double>> class_means(const Dataset& data) {
  std::vector<std::vector<double>> means(data.classes());
  std::vector<std::int64_t> counts(data.classes());
  for (std::int64_t i = 0; i < data.size(); ++i) {
    const std::vector<float> x = values_of(data, i);
    auto& mean = means[data.label(i)];
    mean.resize(x.size());
    ++counts[data.label(i)];
    for (std::size_t j = 0; j < x.size(); ++j) mean[j] += x[j];
  }
  for (std::size_t c = 0; c < means.size(); ++c) {
    for (double& value : means[c]) value /= static_cast<double>(counts[c]);
  }
  return means;
}

double nearest_mean_accuracy(const Dataset& train, const Dataset& test) {
  const auto means = class_means(train);
  std::int64_t right = 0;
  for (std::int64_t i = 0; i < test.size(); ++i) {
    const std::vector<float> x = values_of(test, i);
    std::map<double, std::int64_t> by_distance;
    for (std::size_t c = 0; c < means.size(); ++c) {
      double distance = 0;
      for (std::size_t j = 0; j < x.size(); ++j) {
        distance += (x[j] - means[c][j]) * (x[j] - means[c][j]);
      }
      by_distance.emplace(distance, c);
    }
    right += by_distance.begin()->second == test.label(i);
  }
  return static_cast<double>(right) / static_cast<double>(test.size());
}

}  // namespace

TEST_CASE("synthetic items have addresses: a shifted set repeats the items they share",
          "[synthetic]") {
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{24}, {3, 8, 6}}) {
    const auto all = make_synthetic({.items = 50, .classes = 4, .shape = shape, .seed = 3});
    const auto tail =
        make_synthetic({.items = 20, .first_item = 30, .classes = 4, .shape = shape, .seed = 3});
    const auto other = make_synthetic({.items = 20, .classes = 4, .shape = shape, .seed = 4});
    CHECK(all->item_shape() == shape);
    for (std::int64_t i = 0; i < 20; ++i) {
      CHECK(tail->label(i) == all->label(30 + i));
      CHECK(values_of(*tail, i) == values_of(*all, 30 + i));
      CHECK(values_of(*other, i) != values_of(*all, i));
    }
  }
}

TEST_CASE("synthetic classes can be learned, and noise makes them harder", "[synthetic]") {
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{64}, {1, 12, 12}}) {
    const auto accuracy = [&](double noise, double label_noise) {
      SyntheticOptions options{
          .items = 1000, .shape = shape, .noise = noise, .label_noise = label_noise};
      const auto train = make_synthetic(options);
      options.first_item = options.items;
      return nearest_mean_accuracy(*train, *make_synthetic(options));
    };
    CHECK(accuracy(0.5, 0.0) > 0.95);
    CHECK(accuracy(20.0, 0.0) < 0.6);
    // Half of the labels are drawn anew, a tenth of those alike: 55 % stay; 5 standard errors.
    CHECK_THAT(accuracy(0.5, 0.5), WithinAbs(0.55, 0.08));
  }
}

TEST_CASE("synthetic items are independent of their neighbours", "[synthetic]") {
  constexpr std::int64_t kItems = 4096;
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{8}, {1, 2, 4}}) {
    const auto data = make_synthetic({.items = kItems, .classes = 1, .shape = shape});
    std::vector<double> mean(8), variance(8), covariance(64);  // of value j with the next item's k
    for (std::int64_t i = 0; i < kItems; ++i) {
      for (int j = 0; j < 8; ++j) mean[j] += values_of(*data, i)[j] / double{kItems};
    }
    for (std::int64_t i = 0; i + 1 < kItems; ++i) {
      const std::vector<float> a = values_of(*data, i);
      const std::vector<float> b = values_of(*data, i + 1);
      for (int j = 0; j < 8; ++j) {
        variance[j] += (a[j] - mean[j]) * (a[j] - mean[j]);
        for (int k = 0; k < 8; ++k) covariance[8 * j + k] += (a[j] - mean[j]) * (b[k] - mean[k]);
      }
    }
    for (int j = 0; j < 8; ++j) {
      for (int k = 0; k < 8; ++k) {
        const double correlation = covariance[8 * j + k] / std::sqrt(variance[j] * variance[k]);
        CHECK(std::abs(correlation) < 5 / std::sqrt(double{kItems}));
      }
    }
  }
}

TEST_CASE("synthetic pixels stop at black and white, with the statistics asked for",
          "[synthetic]") {
  const auto data = make_synthetic(
      {.items = 9, .shape = {1, 8, 8}, .noise = 100, .transform = {.mean = {0}, .std = {1}}});
  std::int64_t ends = 0;
  for (std::int64_t i = 0; i < 9; ++i)
    for (const float value : values_of(*data, i)) ends += value == 0 || value == 1;
  CHECK(ends > 500);  // of 576
}

TEST_CASE("synthetic classes are equally frequent", "[synthetic]") {
  const auto data = make_synthetic({.items = 4096, .classes = 8, .shape = {1}});
  std::vector<std::int64_t> counts(8);
  for (std::int64_t i = 0; i < data->size(); ++i) ++counts[data->label(i)];
  for (const std::int64_t count : counts) {
    CHECK(std::abs(static_cast<double>(count) - 512) < 5 * std::sqrt(512 * 7 / 8.0));
  }
}

TEST_CASE("impossible synthetic data is a configuration error", "[synthetic]") {
  const auto check = [](const SyntheticOptions& options, const std::string& text) {
    check_error([&] { make_synthetic(options); }, ExitCode::kBadConfig, "synthetic data: " + text);
  };
  check({.shape = {2, 3}}, "shape [2, 3] must be [width] or [channels, height, width]");
  check({.shape = {3, 0, 3}}, "shape [3, 0, 3] must be above 0");
  check({.items = 0}, "items must be above 0, got 0");
  check({.first_item = -1}, "first_item must not be negative, got -1");
  check({.classes = 0}, "classes must be from 1 to 2^31 - 1, got 0");
  check({.noise = -1}, "noise must be finite and not negative, got -1");
  check({.noise = INFINITY}, "noise must be finite and not negative, got inf");
  check({.label_noise = 1.5}, "label_noise must be from 0 to 1, got 1.5");
  check({.label_noise = std::nan("")}, "label_noise must be from 0 to 1, got nan");
}

TEST_CASE("synthetic text: words of a vocabulary that tell the class, noise aside", "[synthetic]") {
  const WordPiece tokenizer(synthetic_vocabulary(55));
  CHECK(tokenizer.size() == 55);
  CHECK(tokenizer.token(tokenizer.cls()) == "[CLS]");
  std::vector<std::int32_t> ids;
  tokenizer.encode("w0 w49 [MASK]", ids);
  CHECK(ids == std::vector<std::int32_t>{5, 54, tokenizer.mask()});

  SyntheticTextOptions options{
      .items = 400, .classes = 3, .tokens = 12, .vocabulary = 55, .noise = 0, .seed = 3};
  const auto pure = make_synthetic_text(options);
  CHECK(pure->item_shape() == std::vector<std::int64_t>{12});
  options.noise = 3;
  const auto noisy = make_synthetic_text(options);
  std::int64_t own = 0, late = 0;
  std::vector<std::int64_t> times(55);
  for (std::int64_t i = 0; i < options.items; ++i) {
    Batch batch;
    pure->append(i, {}, batch);
    REQUIRE(batch.tokens.size() == 12);
    CHECK(batch.tokens.front() == tokenizer.cls());
    CHECK(batch.tokens.back() == tokenizer.sep());
    for (std::size_t t = 1; t < 11; ++t) {
      CHECK((batch.tokens[t] - 5) % 3 == pure->label(i));
      ++times[batch.tokens[t]];
    }
    noisy->append(i, {}, batch);
    for (std::size_t t = 13; t < 23; ++t) {
      const bool is_own = (batch.tokens[t] - 5) % 3 == noisy->label(i);
      own += is_own;
      late += is_own && batch.tokens[t] >= 30;  // half of the words
    }
  }
  CHECK(std::all_of(times.begin() + 5, times.end(), [](std::int64_t n) { return n > 0; }));
  // A quarter is of the class, and a third of the others by chance: a half of 4,000; 5 standard
  // errors.
  CHECK(std::abs(static_cast<double>(own) - 2000) < 5 * std::sqrt(4000 * 0.25));

  CHECK(5 * late > 2 * own);

  options.first_item = 30;
  const auto tail = make_synthetic_text(options);
  for (std::int64_t i = 0; i < 20; ++i) {
    Batch a, b;
    noisy->append(30 + i, {}, a);
    tail->append(i, {}, b);
    CHECK(a.tokens == b.tokens);
    CHECK(noisy->label(30 + i) == tail->label(i));
  }

  check_error([&] { make_synthetic_text({.tokens = 2}); }, ExitCode::kBadConfig,
              "synthetic data: tokens must be from 3, got 2");
  CHECK(make_synthetic_text({.items = 5, .classes = 3, .vocabulary = 8})->size() == 5);
  check_error([&] { make_synthetic_text({.vocabulary = 6}); }, ExitCode::kBadConfig,
              "synthetic data: vocabulary must have 5 special tokens and a word of each class, got "
              "6");
}
