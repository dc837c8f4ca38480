#include <cmath>

#include "tests/support/check_layer.h"

using namespace vcas;

TEST_CASE("gelu", "[layer]") {
  check_layer({.kind = "gelu", .inputs = {{.width = 13}}, .formula = [](const LayerValues& v) {
                 std::vector<double> y;
                 for (const double x : v.inputs[0])
                   y.push_back(x * 0.5 * (1 + std::erf(x / std::sqrt(2.0))));
                 return y;
               }});
}

TEST_CASE("gelu by tanh", "[layer]") {
  check_layer({.kind = "gelu_tanh", .inputs = {{.width = 13}}, .formula = [](const LayerValues& v) {
                 std::vector<double> y;
                 for (const double x : v.inputs[0])
                   y.push_back(0.5 * x *
                               (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) *
                                              (x + 0.044715 * x * x * x))));
                 return y;
               }});
}
