#include "tests/support/check_layer.h"

using namespace vcas;

namespace {

// y = x W^T + b with C = 8 and D = 6.
std::vector<double> product(const LayerValues& v, bool bias) {
  std::vector<double> y;
  for (std::int64_t r = 0; r < v.offsets.back(); ++r)
    for (std::size_t d = 0; d < 6; ++d) {
      double sum = bias ? v.parameters[1][d] : 0;
      for (std::size_t c = 0; c < 8; ++c)
        sum += v.inputs[0][static_cast<std::size_t>(r) * 8 + c] * v.parameters[0][d * 8 + c];
      y.push_back(sum);
    }
  return y;
}

}  // namespace

TEST_CASE("linear", "[layer]") {
  check_layer({.kind = "linear",
               .config = {{"width", 6}},
               .inputs = {{.width = 8}},
               .formula = [](const LayerValues& v) { return product(v, true); }});
}

TEST_CASE("linear without bias, weight never sampled", "[layer]") {
  check_layer({.kind = "linear",
               .config = {{"width", 6}, {"bias", false}, {"sampled", false}},
               .inputs = {{.width = 8}},
               .formula = [](const LayerValues& v) { return product(v, false); }});
}
