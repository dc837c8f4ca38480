#include "tests/support/check_layer.h"

using namespace vcas;

TEST_CASE("select_rows", "[layer]") {
  for (const Layout layout : {Layout::masked(), Layout::items(2)})
    check_layer({.kind = "select_rows",
                 .inputs = {{.width = 5}, {.layout = layout, .own_rows = true}},
                 .formula = [](const LayerValues& v) {
                   std::vector<double> y;
                   for (const double row : v.inputs[1])
                     for (std::size_t c = 0; c < 5; ++c)
                       y.push_back(v.inputs[0][static_cast<std::size_t>(row) * 5 + c]);
                   return y;
                 }});
}
