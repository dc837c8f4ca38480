#include "tests/support/check_layer.h"

using namespace vcas;

namespace {

std::vector<double> pool(const LayerValues& v, bool mean) {
  std::vector<double> y;
  for (std::size_t item = 0; item + 1 < v.offsets.size(); ++item) {
    const auto first = static_cast<std::size_t>(v.offsets[item]);
    const auto rows = static_cast<std::size_t>(v.offsets[item + 1]) - first;
    for (std::size_t c = 0; c < 11; ++c) {
      double sum = 0;
      for (std::size_t r = 0; r < (mean ? rows : 1); ++r) sum += v.inputs[0][(first + r) * 11 + c];
      y.push_back(mean ? sum / static_cast<double>(rows) : sum);
    }
  }
  return y;
}

}  // namespace

TEST_CASE("pool", "[layer]") {
  check_layer({.kind = "pool",
               .config = {{"pooling", "first"}},
               .inputs = {{.width = 11}},
               .formula = [](const LayerValues& v) { return pool(v, false); }});
  check_layer({.kind = "pool",
               .config = {{"pooling", "mean"}},
               .inputs = {{.width = 11}},
               .formula = [](const LayerValues& v) { return pool(v, true); }});
}

TEST_CASE("pool refuses another name", "[layer]") {
  CHECK_THAT(layer_faults({.kind = "pool", .config = {{"pooling", "last"}}, .inputs = {{}}}).at(0),
             ContainsSubstring("must be \"first\" or \"mean\", got \"last\""));
}
