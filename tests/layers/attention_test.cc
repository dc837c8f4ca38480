#include <cmath>

#include "tests/support/check_layer.h"
#include "tests/support/fewer_cases.h"

using namespace vcas;

namespace {

constexpr std::size_t kHeads = 2, kHeadWidth = 5, kWidth = kHeads * kHeadWidth;

// softmax(Q K^T / sqrt(head width)) V of each item and head.
// With `causal` a query has no keys behind it.
std::vector<double> attention_of(const LayerValues& v, bool causal) {
  const auto qkv = [&](std::size_t row, std::size_t part, std::size_t column) {
    return v.inputs[0][(row * 3 + part) * kWidth + column];
  };
  std::vector<double> y(v.inputs[0].size() / 3);
  for (std::size_t item = 0; item + 1 < v.offsets.size(); ++item) {
    const auto first = static_cast<std::size_t>(v.offsets[item]);
    const auto end = static_cast<std::size_t>(v.offsets[item + 1]);
    for (std::size_t query = first; query < end; ++query)
      for (std::size_t head = 0; head < kHeads; ++head) {
        const std::size_t keys_end = causal ? query + 1 : end;
        std::vector<double> weight;
        double sum = 0;
        for (std::size_t key = first; key < keys_end; ++key) {
          double score = 0;
          for (std::size_t c = head * kHeadWidth; c < (head + 1) * kHeadWidth; ++c)
            score += qkv(query, 0, c) * qkv(key, 1, c);
          weight.push_back(std::exp(score / std::sqrt(kHeadWidth)));
          sum += weight.back();
        }
        for (std::size_t key = first; key < keys_end; ++key)
          for (std::size_t c = head * kHeadWidth; c < (head + 1) * kHeadWidth; ++c)
            y[query * kWidth + c] += weight[key - first] / sum * qkv(key, 2, c);
      }
  }
  return y;
}

std::vector<double> attention(const LayerValues& v) { return attention_of(v, false); }

// The same of the first row of each item, with its query from the first input.
std::vector<double> first_rows(const LayerValues& v) {
  LayerValues all{{{}}, {}, v.offsets};
  std::vector<double> y;
  // The offsets are of the first input, one row an item: those of the second follow from the test.
  const std::vector<std::int64_t> tokens = {5, 1, 7, 3};
  const bool equal = v.inputs[1].size() == 3 * 4 * 2 * kWidth;
  all.offsets = {0};
  for (const std::int64_t n : tokens) all.offsets.push_back(all.offsets.back() + (equal ? 3 : n));
  for (std::size_t row = 0; row < v.inputs[1].size() / (2 * kWidth); ++row) {
    std::size_t item = 0;
    while (all.offsets[item + 1] <= static_cast<std::int64_t>(row)) ++item;
    const auto part = [&](const std::vector<double>& from, std::size_t begin, std::size_t count) {
      const auto first = from.begin() + static_cast<std::ptrdiff_t>(begin);
      all.inputs[0].insert(all.inputs[0].end(), first, first + static_cast<std::ptrdiff_t>(count));
    };
    part(v.inputs[0], item * kWidth, kWidth);
    part(v.inputs[1], row * 2 * kWidth, 2 * kWidth);
  }
  const std::vector<double> full = attention(all);
  for (std::size_t item = 0; item < tokens.size(); ++item)
    for (std::size_t c = 0; c < kWidth; ++c)
      y.push_back(full[static_cast<std::size_t>(all.offsets[item]) * kWidth + c]);
  return y;
}

}  // namespace

TEST_CASE("attention", "[layer]") {
  check_layer({.kind = "attention",
               .config = {{"heads", kHeads}},
               .inputs = {{.width = 3 * kWidth}},
               .formula = attention});
}

TEST_CASE("causal attention", "[layer]") {
  for (const double dropout : cases_to_run({0.0, 0.3})) {
    LayerCase test{.kind = "attention",
                   .config = {{"heads", kHeads}, {"causal", true}, {"dropout", dropout}},
                   .inputs = {{.width = 3 * kWidth}}};
    if (dropout == 0) test.formula = [](const LayerValues& v) { return attention_of(v, true); };
    check_layer(test);
  }
}

TEST_CASE("attention with dropout", "[layer]") {
  check_layer({.kind = "attention",
               .config = {{"heads", kHeads}, {"dropout", 0.3}},
               .inputs = {{.width = 3 * kWidth}}});
}

TEST_CASE("attention of the first rows", "[layer]") {
  for (const double dropout : cases_to_run({0.0, 0.3})) {
    LayerCase test{
        .kind = "attention",
        .config = {{"heads", kHeads}, {"dropout", dropout}},
        .inputs = {{.width = kWidth, .layout = Layout::items(1)}, {.width = 2 * kWidth}}};
    if (dropout == 0) test.formula = first_rows;
    check_layer(test);
  }
}

TEST_CASE("attention refuses inputs that do not fit", "[layer]") {
  CHECK_THAT(
      layer_faults({.kind = "attention", .config = {{"heads", 5}}, .inputs = {{.width = 72}}})
          .at(0),
      ContainsSubstring("heads 5 does not divide width 24"));
  CHECK_THAT(
      layer_faults({.kind = "attention", .config = {{"heads", 5}}, .inputs = {{.width = 70}}})
          .at(0),
      ContainsSubstring("width 70 is not 3 times"));
  CHECK_THAT(
      layer_faults(
          {.kind = "attention", .config = {{"heads", 5}}, .inputs = {{.width = 10}, {.width = 20}}})
          .at(0),
      ContainsSubstring("10 in tokens rows an item") && ContainsSubstring("must be 1 row"));
  CHECK_THAT(layer_faults({.kind = "attention",
                           .config = {{"heads", 2}, {"causal", true}},
                           .inputs = {{.width = 10, .layout = Layout::items(1)}, {.width = 20}}})
                 .at(0),
             ContainsSubstring(
                 "attention: causal, and the first row of each item alone asks; it sees no other"));
}
