#include "layers/image_patches.h"

namespace vcas {

Patches read_patches(const LayerConfig& config) {
  constexpr std::int64_t kMostSide = 1 << 15;
  const auto side = [&](const char* key, std::int64_t least, std::int64_t otherwise) {
    const auto value =
        otherwise < 0 ? config.get<std::int64_t>(key) : config.get<std::int64_t>(key, otherwise);
    if (value < least || value > kMostSide)
      config.fail(key, "must be from " + std::to_string(least) + " to " +
                           std::to_string(kMostSide) + ", got " + std::to_string(value));
    return static_cast<std::int32_t>(value);
  };
  const Patches patches{.height = side("height", 1, -1),
                        .width = side("width", 1, -1),
                        .kernel = side("kernel", 1, -1),
                        .stride = side("stride", 1, 1),
                        .padding = side("padding", 0, 0)};
  if (patches.padding >= patches.kernel)
    config.fail("padding", "must be below the kernel " + std::to_string(patches.kernel) + ", got " +
                               std::to_string(patches.padding));
  if (std::min(patches.height, patches.width) + 2 * patches.padding < patches.kernel)
    config.fail("kernel", std::to_string(patches.kernel) + " is larger than the padded image of " +
                              std::to_string(patches.height) + " x " +
                              std::to_string(patches.width));
  return patches;
}

void check_image(const char* kind, const PlanInput& in, std::int64_t values) {
  check_inputs(kind, in, {DType::kF32});
  const ValueSpec& image = in.inputs[0];
  if (image.width != values || image.layout != Layout::items(1))
    throw Error(ExitCode::kBadConfig, std::string(kind) + ": an image has " +
                                          std::to_string(values) + " values in 1 row, got " +
                                          std::to_string(image.width) + " in " +
                                          image.layout.text());
}

void check_pixels(const char* kind, const PlanInput& in, std::int64_t pixels) {
  check_inputs(kind, in, {in.dtype});
  if (const Layout layout = in.inputs[0].layout; layout != Layout::items(pixels))
    throw Error(ExitCode::kBadConfig, std::string(kind) + ": an image has " +
                                          std::to_string(pixels) + " rows, got " + layout.text());
}

}  // namespace vcas
