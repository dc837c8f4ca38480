#include <cmath>

#include "tests/support/check_layer.h"

using namespace vcas;

namespace {

constexpr std::size_t kHeads = 2, kHeadWidth = 5, kWidth = kHeads * kHeadWidth;

// softmax(Q K^T / sqrt(head width)) V of each item and head.
std::vector<double> attention(const LayerValues& v) {
  const auto qkv = [&](std::size_t row, std::size_t part, std::size_t column) {
    return v.inputs[0][(row * 3 + part) * kWidth + column];
  };
  std::vector<double> y(v.inputs[0].size() / 3);
  for (std::size_t item = 0; item + 1 < v.offsets.size(); ++item) {
    const auto first = static_cast<std::size_t>(v.offsets[item]);
    const auto end = static_cast<std::size_t>(v.offsets[item + 1]);
    for (std::size_t query = first; query < end; ++query)
      for (std::size_t head = 0; head < kHeads; ++head) {
        std::vector<double> weight;
        double sum = 0;
        for (std::size_t key = first; key < end; ++key) {
          double score = 0;
          for (std::size_t c = head * kHeadWidth; c < (head + 1) * kHeadWidth; ++c)
            score += qkv(query, 0, c) * qkv(key, 1, c);
          weight.push_back(std::exp(score / std::sqrt(kHeadWidth)));
          sum += weight.back();
        }
        for (std::size_t key = first; key < end; ++key)
          for (std::size_t c = head * kHeadWidth; c < (head + 1) * kHeadWidth; ++c)
            y[query * kWidth + c] += weight[key - first] / sum * qkv(key, 2, c);
      }
  }
  return y;
}

}  // namespace

TEST_CASE("attention", "[layer]") {
  check_layer({.kind = "attention",
               .config = {{"heads", kHeads}},
               .inputs = {{.width = 3 * kWidth}},
               .formula = attention});
}

TEST_CASE("attention with dropout", "[layer]") {
  check_layer({.kind = "attention",
               .config = {{"heads", kHeads}, {"dropout", 0.3}},
               .inputs = {{.width = 3 * kWidth}}});
}

TEST_CASE("attention refuses widths that do not divide", "[layer]") {
  CHECK_THAT(
      layer_faults({.kind = "attention", .config = {{"heads", 5}}, .inputs = {{.width = 72}}})
          .at(0),
      ContainsSubstring("heads 5 does not divide width 24"));
  CHECK_THAT(
      layer_faults({.kind = "attention", .config = {{"heads", 5}}, .inputs = {{.width = 70}}})
          .at(0),
      ContainsSubstring("width 70 is not 3 times"));
}
