#include "tests/support/check_layer.h"

using namespace vcas;

TEST_CASE("squared error", "[layer]") {
  check_layer(
      {.kind = "squared_error",
       .inputs = {{.layout = Layout::items(1)}, {.layout = Layout::items(1), .image = true}},
       .loss = true,
       .formula = [](const LayerValues& v) {
         std::vector<double> loss;
         for (std::size_t n = 0; n < v.inputs[0].size(); ++n) {
           const double error = v.inputs[0][n] - v.inputs[1][n];
           loss.push_back(error * error);
         }
         return loss;
       }});
}

TEST_CASE("squared error refuses more than one number an item", "[layer]") {
  CHECK_THAT(layer_faults({.kind = "squared_error",
                           .inputs = {{.width = 3, .layout = Layout::items(1)},
                                      {.layout = Layout::items(1), .image = true}},
                           .loss = true})
                 .at(0),
             ContainsSubstring("one number an item") && ContainsSubstring("width 3"));
}
