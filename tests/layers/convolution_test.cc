// Layers over images, whose pixels are rows.
#include "layers/graph.h"
#include "tests/support/check_layer.h"

using namespace vcas;

namespace {

// y of a convolution of images [items, height * width, channels], by the definition.
struct Convolution {
  std::size_t height, width, channels, kernel, stride, padding, features;

  std::vector<double> operator()(const LayerValues& v) const {
    const std::size_t down = (height + 2 * padding - kernel) / stride + 1;
    const std::size_t across = (width + 2 * padding - kernel) / stride + 1;
    std::vector<double> y;
    for (std::size_t n = 0; n + 1 < v.offsets.size(); ++n)
      for (std::size_t place = 0; place < down * across; ++place)
        for (std::size_t d = 0; d < features; ++d) {
          double sum = v.parameters.size() > 1 ? v.parameters[1][d] : 0;
          for (std::size_t tap = 0; tap < kernel * kernel; ++tap) {
            const std::size_t line = place / across * stride + tap / kernel;
            const std::size_t pixel = place % across * stride + tap % kernel;
            if (line < padding || line - padding >= height) continue;
            if (pixel < padding || pixel - padding >= width) continue;
            const std::size_t row = (n * height + line - padding) * width + pixel - padding;
            for (std::size_t c = 0; c < channels; ++c)
              sum += v.inputs[0][row * channels + c] *
                     v.parameters[0][(d * kernel * kernel + tap) * channels + c];
          }
          y.push_back(sum);
        }
    return y;
  }
  nlohmann::json config() const {
    return {{"height", height}, {"width", width},     {"kernel", kernel},
            {"stride", stride}, {"padding", padding}, {"features", features}};
  }
};

LayerInput pixels(std::int64_t width, std::int64_t rows) {
  return {.width = width, .layout = Layout::items(rows)};
}

}  // namespace

TEST_CASE("conv2d", "[layer]") {
  for (const Convolution& of : {Convolution{5, 4, 3, 3, 1, 1, 2},
                                {5, 4, 3, 3, 2, 1, 2},
                                {4, 6, 2, 1, 2, 0, 3},
                                {3, 3, 4, 1, 1, 0, 5},
                                {6, 5, 1, 4, 2, 3, 2}}) {
    INFO(of.kernel << " x " << of.kernel << ", stride " << of.stride);
    check_layer({.kind = "conv2d",
                 .config = of.config(),
                 .inputs = {pixels(static_cast<std::int64_t>(of.channels),
                                   static_cast<std::int64_t>(of.height * of.width))},
                 .formula = of});
  }
  const Convolution with_bias{4, 4, 2, 3, 1, 1, 3};
  nlohmann::json config = with_bias.config();
  config["bias"] = true;
  config["sampled"] = false;
  check_layer(
      {.kind = "conv2d", .config = config, .inputs = {pixels(2, 16)}, .formula = with_bias});
}

TEST_CASE("max_pool", "[layer]") {
  // So small that no patch has two largest values, where there is no slope.
  check_layer(
      {.kind = "max_pool",
       .config = {{"height", 3}, {"width", 5}, {"kernel", 3}, {"stride", 2}, {"padding", 1}},
       .inputs = {pixels(2, 15)}});
}

TEST_CASE("relu", "[layer]") {
  check_layer(
      {.kind = "relu", .inputs = {{.width = 9, .kinks = {0}}}, .formula = [](const auto& v) {
         std::vector<double> y = v.inputs[0];
         for (double& value : y) value = std::max(value, 0.0);
         return y;
       }});
}

TEST_CASE("image_rows", "[layer]") {
  check_layer({.kind = "image_rows",
               .config = {{"channels", 3}, {"height", 2}, {"width", 4}},
               .inputs = {{.width = 24, .layout = Layout::items(1), .image = true}},
               .formula = [](const LayerValues& v) {
                 std::vector<double> y;
                 for (std::size_t n = 0; n + 1 < v.offsets.size(); ++n)
                   for (std::size_t pixel = 0; pixel < 8; ++pixel)
                     for (std::size_t c = 0; c < 3; ++c)
                       y.push_back(v.inputs[0][n * 24 + c * 8 + pixel]);
                 return y;
               }});
}

TEST_CASE("settings of layers over images that fit nothing are refused", "[layer]") {
  const auto config = [](int kernel, int padding) {
    return nlohmann::json{
        {"height", 4}, {"width", 4}, {"kernel", kernel}, {"padding", padding}, {"features", 2}};
  };
  CHECK_THROWS_WITH(make_layer("conv2d", config(7, 1)),
                    ContainsSubstring("conv2d.kernel 7 is larger than the padded image of 4 x 4"));
  nlohmann::json narrow = config(3, 0);
  narrow["width"] = 2;
  CHECK_THROWS_WITH(make_layer("conv2d", narrow),
                    ContainsSubstring("conv2d.kernel 3 is larger than the padded image of 4 x 2"));
  narrow["width"] = 40000;
  CHECK_THROWS_WITH(make_layer("conv2d", narrow),
                    ContainsSubstring("conv2d.width must be from 1 to 32768, got 40000"));
  CHECK_THROWS_WITH(make_layer("conv2d", config(2, 2)),
                    ContainsSubstring("conv2d.padding must be below the kernel 2, got 2"));
  CHECK_THROWS_WITH(make_layer("conv2d", config(0, 0)),
                    ContainsSubstring("conv2d.kernel must be from 1"));
  const std::vector<ValueSpec> specs{{3, Layout::items(15), DType::kF32}};
  CHECK_THROWS_WITH(make_layer("conv2d", config(3, 1))->plan({specs, DType::kF32, 2, 0, 0}),
                    ContainsSubstring("conv2d: an image has 16 rows, got 15"));
  const auto pool = make_layer("max_pool", {{"height", 4}, {"width", 4}, {"kernel", 2}});
  CHECK_THROWS_WITH(pool->plan({specs, DType::kF32, 2, 0, 0}),
                    ContainsSubstring("max_pool: an image has 16 rows, got 15"));
  const std::vector<ValueSpec> pixels{{3, Layout::items(16), DType::kF32}};
  CHECK(pool->plan({pixels, DType::kF32, 2, 0, 0}).output.layout == Layout::items(9));
  CHECK_THROWS_WITH(make_layer("group_norm", {{"groups", 2}})->plan({specs, DType::kF32, 2, 0, 0}),
                    ContainsSubstring("group_norm: 2 groups do not divide the width 3"));
}
