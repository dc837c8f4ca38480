#include "tests/support/check_layer.h"

using namespace vcas;

TEST_CASE("embedding", "[layer]") {
  check_layer({.kind = "embedding",
               .config = {{"vocabulary", 6}, {"width", 9}},
               .inputs = {{.integers = 6}},
               .formula = [](const LayerValues& v) {
                 std::vector<double> y;
                 for (const double token : v.inputs[0])
                   for (std::size_t c = 0; c < 9; ++c)
                     y.push_back(v.parameters[0][static_cast<std::size_t>(token) * 9 + c]);
                 return y;
               }});
}
