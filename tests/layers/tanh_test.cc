#include <cmath>

#include "tests/support/check_layer.h"

using namespace vcas;

TEST_CASE("tanh", "[layer]") {
  check_layer({.kind = "tanh", .inputs = {{.width = 9}}, .formula = [](const LayerValues& v) {
                 std::vector<double> y;
                 for (const double x : v.inputs[0]) y.push_back(std::tanh(x));
                 return y;
               }});
}
