#include "tools/run_images.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "core/error.h"
#include "core/hardware.h"
#include "core/progress.h"
#include "data/cifar.h"
#include "data/idx.h"
#include "data/image_file.h"
#include "data/image_folder.h"
#include "data/synthetic.h"
#include "models/weights_io.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

CifarKind cifar_kind(const std::string& type) {
  return type == "cifar10" ? CifarKind::kCifar10 : CifarKind::kCifar100;
}

std::unique_ptr<Dataset> load_in_memory(const RunConfig& config, Split split,
                                        const ImageTransformOptions& transform,
                                        const std::vector<std::string>& known_classes) {
  const DataOptions& data = config.data;
  if (data.type == "synthetic") {
    const SyntheticData& sizes = data.synthetic;
    const bool train = split == Split::kTrain;
    return make_synthetic({.items = train ? sizes.items : sizes.eval_items,
                           .first_item = train ? 0 : sizes.items,
                           .classes = sizes.classes,
                           .shape = {sizes.shape.begin(), sizes.shape.end()},
                           .noise = sizes.noise,
                           .label_noise = sizes.label_noise,
                           .seed = config.seed,
                           .transform = transform});
  }
  if (data.type.starts_with("cifar")) {
    return load_cifar({.folder = data.folder,
                       .kind = cifar_kind(data.type),
                       .split = split,
                       .transform = transform});
  }
  const IdxOptions options{.folder = data.folder,
                           .split = split,
                           .classes = std::ssize(known_classes),
                           .transform = transform};
  return load_idx(data.type == "fashion_mnist" ? fashion_mnist(options) : options);
}

// Decodes images on all threads, with a bar where it takes long.
ImageCheck image_check(const RunConfig& config) {
  const auto bar = std::make_shared<Progress>(stderr, progress_options(STDERR_FILENO));
  return {.skip = config.data.skip_bad_rows,
          .threads = config.threads > 0 ? config.threads : usable_threads(),
          .progress = [bar](std::int64_t done, std::int64_t total) {
            bar->update(done, total, [&] {
              return ProgressText{.label = "checking images",
                                  .fields = fmt::format("of={} checking=images", total)};
            });
            if (done == total) bar->finish();
          }};
}

RunImages load_folder(const RunConfig& config, Split split, const ImageTransformOptions& transform,
                      const std::vector<std::string>& known_classes, bool check) {
  const DataOptions& data = config.data;
  ImageFolderOptions options{
      .folder = data.folder, .classes = known_classes, .transform = transform};
  RunImages images;
  if (split == Split::kTest && !data.image.eval_folder.empty()) {
    options.part = data.image.eval_folder;
  } else if (split == Split::kTest) {
    const std::vector<std::string> parts = evaluation_parts(data.folder);
    options.part = parts.front();
    if (parts.size() > 1)
      images.note =
          fmt::format("{} is evaluated on, and {} is not: data.image.eval_folder decides",
                      (options.folder / parts[0]).string(), (options.folder / parts[1]).string());
  }
  if (check || data.skip_bad_rows) options.check = image_check(config);
  ImageFolder folder = load_image_folder(options);
  images.data = std::move(folder.data);
  images.checked = folder.checked;
  images.skipped = std::move(folder.skipped);
  return images;
}

// A file of images as idx and cifar data have it; null of other data.
std::unique_ptr<Dataset> load_records(const RunConfig& config, const ModelFacts& trained,
                                      const ImageTransformOptions& transform,
                                      const fs::path& file) {
  const std::string& type = config.data.type;
  std::unique_ptr<Dataset> items;
  if (type == "idx" || type == "fashion_mnist")
    items = load_idx_images(file, {.class_names = trained.class_names, .transform = transform});
  if (type.starts_with("cifar"))
    items = load_cifar({.folder = file.parent_path(),
                        .kind = cifar_kind(type),
                        .files = {file.filename().string()},
                        .transform = transform});
  if (items && items->item_shape() != trained.item_shape)
    throw Error(
        ExitCode::kBadData,
        fmt::format("{}: images of {}, and the model was trained on {}", file.string(),
                    fmt::join(items->item_shape(), " x "), fmt::join(trained.item_shape, " x ")));
  return items;
}

// The images that the inputs name.
std::vector<std::string> list_images(const std::vector<fs::path>& inputs) {
  std::vector<std::string> files;
  for (const fs::path& input : inputs) {
    const std::vector<fs::path> found =
        fs::is_directory(input) ? image_files(input) : std::vector{input};
    if (found.empty())
      throw Error(ExitCode::kNoInput, fmt::format("{}: no images in it", input.string()),
                  "images are files whose name ends in .jpg, .jpeg or .png");
    for (const fs::path& file : found) files.push_back(file.string());
  }
  return files;
}

}  // namespace

ImageTransformOptions image_transform(const RunConfig& config, const ModelFacts* trained) {
  const ImageData& image = config.data.image;
  ImageTransformOptions transform{.size = image.size,
                                  .short_side = image.short_side,
                                  .mean = {image.mean.begin(), image.mean.end()},
                                  .std = {image.std.begin(), image.std.end()}};
  std::optional<HfImageProcessor> before;
  if (trained) {
    before = trained->images;
    const std::vector<std::int64_t>& shape = trained->item_shape;
    if (before && shape[1] == shape[2]) transform.size = shape[1];
  } else if (!config.model.pretrained.empty()) {
    const HfFiles files = find_hf_files(config.model.pretrained);
    const std::vector<std::int64_t> shape = read_hf_config(files.config).image_shape;
    if (shape.size() == 3 && shape[1] == shape[2]) {
      if (transform.size != 0 && transform.size != shape[1])
        throw Error(
            ExitCode::kBadConfig,
            fmt::format("data.image.size is {}, but the model of {} reads images of {} x {}",
                        transform.size, files.config.string(), shape[1], shape[2]),
            "leave data.image.size out");
      transform.size = shape[1];
    }
    before = read_hf_image_processor(files.folder);
    if (before && !before->size.empty() && shape.size() == 3 &&
        before->size != std::vector{shape[1], shape[2]})
      throw Error(
          ExitCode::kBadConfig,
          fmt::format("{} makes images of {}, but the model of {} reads {} x {}",
                      (files.folder / kHfImageProcessorFile).string(),
                      fmt::join(before->size, " x "), files.config.string(), shape[1], shape[2]),
          "\"size\" and \"crop_size\" of the one, \"image_size\" of the other");
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

RunImages load_images(const RunConfig& config, Split split, const ImageTransformOptions& transform,
                      const std::vector<std::string>& known_classes, bool check) {
  if (config.data.type == "image_folder")
    return load_folder(config, split, transform, known_classes, check);
  return {.data = load_in_memory(config, split, transform, known_classes)};
}

Unlabelled load_unlabelled_images(const RunConfig& config, const ModelFacts& trained,
                                  const std::vector<fs::path>& inputs) {
  for (const fs::path& input : inputs)
    if (!fs::exists(input))
      throw Error(ExitCode::kNoInput, fmt::format("{}: no such file or folder", input.string()),
                  "--input names images, or a folder of images");
  Unlabelled found;
  const ImageTransformOptions transform = image_transform(config, &trained);
  if (inputs.size() == 1 && !fs::is_directory(inputs[0]) && !has_image_name(inputs[0]))
    found.items = load_records(config, trained, transform, inputs[0]);
  if (found.items) return found;
  ImageFilesContent content{.files = list_images(inputs),
                            .labels = {},
                            .class_names = trained.class_names,
                            .shape = trained.item_shape,
                            .transform = transform};
  content.labels.assign(content.files.size(), -1);
  if (config.data.skip_bad_rows) found.skipped = check_images(image_check(config), content);
  found.files = content.files;
  found.items = std::make_unique<ImageFilesDataset>(std::move(content));
  return found;
}

}  // namespace vcas
