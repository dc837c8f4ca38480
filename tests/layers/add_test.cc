#include "tests/support/check_layer.h"

using namespace vcas;

TEST_CASE("add", "[layer]") {
  check_layer(
      {.kind = "add", .inputs = {{.width = 7}, {.width = 7}}, .formula = [](const LayerValues& v) {
         std::vector<double> y = v.inputs[0];
         for (std::size_t i = 0; i < y.size(); ++i) y[i] += v.inputs[1][i];
         return y;
       }});
}
