#include "tools/run_images.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/progress.h"
#include "data/image_kind.h"
#include "tools/pretrained.h"

namespace vcas {

ImageCheck image_check(const RunConfig& config) {
  ImageCheck check{.skip = config.data.skip_bad_rows, .threads = threads_of(config)};
  if (!config.is_first_rank) return check;
  check.progress = count_on_stderr("checking", "images");
  return check;
}

// Images are of the size that the model reads, `shape` [channels, height, width], if it is square.
static void take_size(const std::vector<std::int64_t>& shape, const std::string& model,
                      ImageTransformOptions& transform) {
  if (shape.size() != 3 || shape[1] != shape[2]) return;
  if (transform.size != 0 && transform.size != shape[1])
    throw Error(ExitCode::kBadConfig,
                fmt::format("data.image.size is {}, but {} reads images of {} x {}", transform.size,
                            model, shape[1], shape[2]),
                "leave data.image.size out");
  transform.size = shape[1];
}

ImageTransformOptions image_transform(const RunConfig& config, const ModelFacts* trained) {
  if (!config.data.kind->images()) return {};
  const ImageSettings& image = *config.data.kind->images();
  ImageTransformOptions transform{.size = image.size,
                                  .short_side = image.short_side,
                                  .mean = {image.mean.begin(), image.mean.end()},
                                  .std = {image.std.begin(), image.std.end()}};
  std::optional<HfImageProcessor> before;
  if (trained) {
    before = trained->images;
    if (before) take_size(trained->item_shape, "the trained model", transform);
  } else if (!config.model.pretrained.empty()) {
    const Pretrained from = find_pretrained(config.model.pretrained);
    const ModelFacts facts = pretrained_facts(from);
    const std::vector<std::int64_t>& shape = facts.item_shape;
    if (shape.size() == 3 && shape[1] != shape[2] && config.data.kind->facts().has_class_folders)
      throw Error(ExitCode::kBadConfig,
                  fmt::format("the model of {} reads images of {} x {}, and data.type \"{}\" makes "
                              "square ones",
                              from.config.string(), shape[1], shape[2], config.data.kind.type),
                  "start from a model of square images");
    take_size(shape, "the model of " + from.config.string(), transform);
    before = facts.images;
    if (before && !before->size.empty() && shape.size() == 3 &&
        before->size != std::vector{shape[1], shape[2]})
      throw Error(
          ExitCode::kBadConfig,
          fmt::format("{} makes images of {}, but the model of {} reads {} x {}",
                      (from.folder / kHfImageProcessorFile).string(),
                      fmt::join(before->size, " x "), from.config.string(), shape[1], shape[2]),
          "\"size\" and \"crop_size\" of the one, \"image_size\" of the other: of a ResNet it is "
          "224 where it is left out");
  }
  std::string interpolation = image.interpolation;
  if (before) {
    if (transform.mean.empty()) transform.mean = before->mean;
    if (transform.std.empty()) transform.std = before->std;
    if (image.short_side == 0) {
      transform.short_side = before->short_side;
      transform.squeeze = before->squeeze;
    }
    if (interpolation == "auto") interpolation = before->resample == 2 ? "bilinear" : "bicubic";
  }
  if (image.fit != "auto") transform.squeeze = image.fit == "squeeze";
  transform.interpolation =
      interpolation == "bilinear" ? Interpolation::kBilinear : Interpolation::kBicubic;
  return transform;
}

}  // namespace vcas
