#include <cmath>

#include "tests/support/check_layer.h"

using namespace vcas;

TEST_CASE("layer norm", "[layer]") {
  constexpr std::size_t kWidth = 24;
  constexpr double kEps = 0.01;
  check_layer({.kind = "layer_norm",
               .config = {{"eps", kEps}},
               .inputs = {{.width = kWidth}},
               .formula = [](const LayerValues& v) {
                 std::vector<double> y = v.inputs[0];
                 for (std::size_t first = 0; first < y.size(); first += kWidth) {
                   double mean = 0, variance = 0;
                   for (std::size_t c = 0; c < kWidth; ++c) mean += y[first + c] / kWidth;
                   for (std::size_t c = 0; c < kWidth; ++c)
                     variance += std::pow(y[first + c] - mean, 2) / kWidth;
                   for (std::size_t c = 0; c < kWidth; ++c)
                     y[first + c] =
                         (y[first + c] - mean) / std::sqrt(variance + kEps) * v.parameters[0][c] +
                         v.parameters[1][c];
                 }
                 return y;
               }});
}
