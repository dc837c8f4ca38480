#include "tests/support/check_layer.h"

using namespace vcas;

namespace {

std::vector<double> squared_error(const LayerValues& v) {
  std::vector<double> loss;
  for (std::size_t n = 0; n < v.inputs[0].size(); ++n) {
    const double error = v.inputs[0][n] - v.inputs[1][n];
    loss.push_back(error * error * (v.inputs.size() > 2 ? v.inputs[2][n] : 1));
  }
  return loss;
}

}  // namespace

TEST_CASE("squared error, with and without weights of items", "[layer]") {
  const LayerInput prediction{.layout = Layout::items(1)},
      target{.layout = Layout::items(1), .image = true}, weight = target;
  check_layer({.kind = "squared_error",
               .inputs = {prediction, target},
               .loss = true,
               .formula = squared_error});
  check_layer({.kind = "squared_error",
               .inputs = {prediction, target, weight},
               .loss = true,
               .formula = squared_error});
}

TEST_CASE("squared error refuses more than one number an item", "[layer]") {
  CHECK_THAT(layer_faults({.kind = "squared_error",
                           .inputs = {{.width = 3, .layout = Layout::items(1)},
                                      {.layout = Layout::items(1), .image = true}},
                           .loss = true})
                 .at(0),
             ContainsSubstring("one number an item") && ContainsSubstring("width 3"));
}
