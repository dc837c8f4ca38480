#include "data/image_kind.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "core/error.h"
#include "data/image_file.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

// The images that the inputs name.
std::vector<std::string> list_images(const std::vector<fs::path>& inputs) {
  std::vector<std::string> files;
  for (const fs::path& input : inputs) {
    const std::vector<fs::path> found =
        fs::is_directory(input) ? find_image_files(input).images : std::vector{input};
    if (found.empty())
      throw Error(ExitCode::kNoInput, fmt::format("{}: no images in it", input.string()),
                  "images are files whose name ends in .jpg, .jpeg or .png");
    for (const fs::path& file : found) files.push_back(file.string());
  }
  return files;
}

}  // namespace

void ImageSettings::fields(Setting& v) {
  v.field("size", size,
          "Side of the square that the model reads; images are resized to it. 0: that of "
          "model.pretrained, else images stay as they are.",
          between(0, 1 << 16));
  v.field("short_side", short_side,
          "Evaluation resizes the short side to this, then cuts the middle out; 0: as that of "
          "model.pretrained, else to size.",
          between(0, 1 << 16));
  v.field("fit", fit,
          "How images become squares: crop cuts the middle out, squeeze changes their shape; "
          "auto: as that of model.pretrained, else crop.",
          one_of({"auto", "crop", "squeeze"}));
  v.field("interpolation", interpolation,
          "How images are resized; auto: that of model.pretrained, else bicubic.",
          one_of({"auto", "bilinear", "bicubic"}));
  v.field("mean", mean,
          "The mean of each channel, of pixels from 0 to 1. Empty: that of model.pretrained, else "
          "of the data.");
  v.field(
      "std", std,
      "The standard deviation of each channel, at most 1. Empty: that of model.pretrained, else "
      "of the data.",
      above(0.0));
  v.field("crop_scale", crop_scale,
          "[low, high]: train on a random part of each image, between these shares of its area, "
          "resized; empty: as in evaluation.",
          above(0.0), at_most(1.0));
  v.field("crop_ratio", crop_ratio, "[low, high] of the width of that part over its height.",
          above(0.0));
  v.field("cutout", cutout,
          "Side of a square at random of a training image that is set to the mean, shorter than "
          "both sides of the image; 0: none.",
          between(0, 1 << 16));
}

void ImageSettings::validate(ConfigErrors& errors) const {
  const auto is_range = [](const std::vector<double>& range) {
    return range.size() == 2 && range[0] <= range[1];
  };
  for (const double value : mean)
    if (!(value >= 0 && value <= 1))
      errors.add(
          {"mean"},
          fmt::format("must be from 0 to 1, got {}: pixels are from 0 to 1, so divide by 255",
                      value));
  for (const double value : std)
    if (!(value <= 1))
      errors.add({"std"},
                 fmt::format("must be at most 1, got {}: pixels are from 0 to 1, so divide by 255",
                             value));
  if (!crop_scale.empty() && !is_range(crop_scale))
    errors.add({"crop_scale"}, "must be [low, high], or empty");
  if (!is_range(crop_ratio)) errors.add({"crop_ratio"}, "must be [low, high]");
}

Setting& ImageKind::add_image_section(Setting& v) {
  v.field("crop_padding", crop_padding_,
          "Pixels added on each side of a training image before a random crop; of images of one "
          "size, so not of image_folder.",
          between(0, 1 << 16));
  v.field("flip", flip_, "Mirror training images with a probability of 1/2.");
  Setting& section = v.section("image", "Images and their pixels.");
  section.bind(image_);
  return section;
}

AugmentOptions ImageKind::augment() const {
  AugmentOptions options{.crop_padding = crop_padding_, .flip = flip_, .cutout = image_.cutout};
  if (!image_.crop_scale.empty())
    options.resized_crop = {.scale_low = image_.crop_scale[0],
                            .scale_high = image_.crop_scale[1],
                            .ratio_low = image_.crop_ratio[0],
                            .ratio_high = image_.crop_ratio[1]};
  return options;
}

OpenedData ImageKind::open_unlabelled(const DataRequest& request,
                                      const std::vector<fs::path>& inputs,
                                      const std::vector<std::int64_t>& item_shape) const {
  for (const fs::path& input : inputs)
    if (!fs::exists(input))
      throw Error(ExitCode::kNoInput, fmt::format("{}: no such file or folder", input.string()),
                  "--input names images, or a folder of images");
  OpenedData found;
  if (inputs.size() == 1 && !fs::is_directory(inputs[0]) && !has_image_name(inputs[0]))
    found.items = open_records(request, inputs[0]);
  if (found.items && found.items->item_shape() != item_shape)
    throw Error(
        ExitCode::kBadData,
        fmt::format("{}: images of {}, and the model was trained on {}", inputs[0].string(),
                    fmt::join(found.items->item_shape(), " x "), fmt::join(item_shape, " x ")));
  if (found.items) return found;
  ImageFilesContent content{.files = list_images(inputs),
                            .labels = {},
                            .class_names = request.known_classes,
                            .shape = item_shape,
                            .transform = request.transform};
  content.labels.assign(content.files.size(), -1);
  if (request.check) found.skipped = check_images(*request.check, content);
  found.files = content.files;
  found.items = std::make_unique<ImageFilesDataset>(std::move(content));
  return found;
}

}  // namespace vcas
