#include "tests/support/check_layer.h"

using namespace vcas;

namespace {

constexpr std::size_t kChannels = 3, kHeight = 4, kWidth = 6, kPatch = 2, kFeatures = 5;
constexpr std::size_t kDown = kHeight / kPatch, kAcross = kWidth / kPatch;

std::vector<double> tokens(const LayerValues& v, bool cls) {
  const std::vector<double>&weight = v.parameters[0], &bias = v.parameters[1];
  const std::vector<double>& position = v.parameters.back();
  std::vector<double> y;
  for (std::size_t item = 0; item + 1 < v.offsets.size(); ++item) {
    std::size_t entry = 0;
    for (std::size_t f = 0; cls && f < kFeatures; ++f)
      y.push_back(v.parameters[2][f] + position[entry++]);
    for (std::size_t down = 0; down < kDown; ++down)
      for (std::size_t across = 0; across < kAcross; ++across)
        for (std::size_t f = 0; f < kFeatures; ++f) {
          double sum = bias[f] + position[entry++];
          for (std::size_t channel = 0; channel < kChannels; ++channel)
            for (std::size_t i = 0; i < kPatch; ++i)
              for (std::size_t j = 0; j < kPatch; ++j)
                sum += weight[((f * kChannels + channel) * kPatch + i) * kPatch + j] *
                       v.inputs[0][((item * kChannels + channel) * kHeight + down * kPatch + i) *
                                       kWidth +
                                   across * kPatch + j];
          y.push_back(sum);
        }
  }
  return y;
}

LayerCase patch_embed(bool cls) {
  return {.kind = "patch_embed",
          .config = {{"channels", kChannels},
                     {"height", kHeight},
                     {"width", kWidth},
                     {"patch", kPatch},
                     {"features", kFeatures},
                     {"cls", cls}},
          .inputs = {{.width = kChannels * kHeight * kWidth,
                      .layout = Layout::items(1),
                      .image = true}},
          .formula = [cls](const LayerValues& v) { return tokens(v, cls); }};
}

}  // namespace

TEST_CASE("patch_embed", "[layer]") {
  check_layer(patch_embed(true));
  check_layer(patch_embed(false));
}

TEST_CASE("patch_embed refuses images that do not fit", "[layer]") {
  LayerCase test = patch_embed(true);
  test.config["patch"] = 4;
  CHECK_THAT(layer_faults(test).at(0), ContainsSubstring("4 does not divide the image of 4 x 6"));
  test = patch_embed(true);
  test.config["patch"] = 3;
  CHECK_THAT(layer_faults(test).at(0), ContainsSubstring("3 does not divide the image of 4 x 6"));
  test = patch_embed(true);
  test.inputs[0].layout = Layout::items(2);
  CHECK_THAT(layer_faults(test).at(0), ContainsSubstring("has 72 values in 1 row, got 72 in 2"));
  test = patch_embed(true);
  test.inputs[0].width = 75;
  CHECK_THAT(layer_faults(test).at(0), ContainsSubstring("has 72 values in 1 row, got 75 in 1"));
}
