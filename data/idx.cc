#include "data/idx.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "core/compressed_file.h"
#include "core/error.h"
#include "core/sizes.h"
#include "data/image_dataset.h"
#include "data/image_kind.h"

namespace vcas {
namespace {

std::uint32_t read_big_endian(const std::uint8_t* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
         std::uint32_t{bytes[2]} << 8 | bytes[3];
}

struct IdxFile {
  SourceFile source;
  IdxArray array;
  std::string name() const { return source.path.string(); }
};

IdxFile find_idx(const std::filesystem::path& path, int dims) {
  const std::filesystem::path file = find_plain_or_compressed(
      path,
      "data.folder holds train-images-idx3-ubyte, train-labels-idx1-ubyte, "
      "t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, plain or compressed; "
      "data.validation_share=0.1 does without the last two. Fashion-MNIST: apt-get install "
      "dataset-fashion-mnist puts it into /usr/share/datasets/fashion-mnist");
  const SourceFile source = source_file(file);
  IdxArray array = read_idx(file, dims);
  check_unchanged({&source, 1});
  return {source, std::move(array)};
}

struct PixelStatistics {
  double mean = 0;
  double std = 0;
};

// Statistics of pixels from 0 to 1.
PixelStatistics pixel_statistics(const std::vector<std::uint8_t>& pixels) {
  std::array<std::int64_t, 256> counts{};
  for (const std::uint8_t pixel : pixels) ++counts[pixel];
  const auto mean_of = [&](auto value) {
    double sum = 0;
    for (int pixel = 0; pixel < 256; ++pixel)
      sum += static_cast<double>(counts[pixel]) * value(pixel / 255.0);
    return sum / static_cast<double>(pixels.size());
  };
  const double mean = mean_of([](double x) { return x; });
  return {mean, std::sqrt(mean_of([mean](double x) { return (x - mean) * (x - mean); }))};
}

void add_missing_statistics(const IdxFile& images, ImageTransformOptions& transform) {
  if (!transform.mean.empty() && !transform.std.empty()) return;
  const std::vector<std::uint8_t>& pixels = images.array.values;
  const PixelStatistics found = pixel_statistics(pixels);
  if (transform.mean.empty()) transform.mean = {static_cast<float>(found.mean)};
  if (!transform.std.empty()) return;
  if (std::ranges::count(pixels, pixels.front()) == std::ssize(pixels))
    throw Error(ExitCode::kBadData,
                fmt::format("{}: all pixels are {}", images.name(), pixels.front()),
                "data.image.std takes the place of their standard deviation, which is 0");
  transform.std = {static_cast<float>(found.std)};
}

// Takes the pixels.
ImageContent image_content(IdxFile& images, const ImageTransformOptions& transform) {
  if (images.array.values.empty())
    throw Error(ExitCode::kBadData, fmt::format("{}: no pixels in it ({})", images.name(),
                                                fmt::join(images.array.sizes, " x ")));
  ImageContent content{.shape = {1, images.array.sizes[1], images.array.sizes[2]},
                       .transform = transform};
  add_missing_statistics(images, content.transform);
  content.pixels = std::move(images.array.values);
  return content;
}

std::vector<std::string> find_class_names(const std::filesystem::path& folder,
                                          const std::vector<std::uint8_t>& labels,
                                          std::int64_t classes) {
  const std::filesystem::path file = folder / "classes.txt";
  if (std::filesystem::exists(file)) return read_class_names(file);
  return numbered_classes(classes > 0 ? classes : *std::ranges::max_element(labels) + 1);
}

}  // namespace

IdxOptions fashion_mnist(IdxOptions asked) {
  if (asked.folder.empty()) asked.folder = "/usr/share/datasets/fashion-mnist";
  if (asked.class_names.empty())
    asked.class_names = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                         "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};
  if (asked.transform.mean.empty()) asked.transform.mean = {0.2860f};
  if (asked.transform.std.empty()) asked.transform.std = {0.3530f};
  return asked;
}

IdxArray read_idx(const std::filesystem::path& path, int dims) {
  const auto fail = [&](const std::string& why) {
    throw Error(ExitCode::kBadData, fmt::format("{}: {}", path.string(), why));
  };
  DecompressedFile file(path);
  const std::size_t header_bytes = 4 + 4 * static_cast<std::size_t>(dims);
  const std::vector<std::uint8_t> header = file.read_up_to(header_bytes);
  if (header.size() < header_bytes)
    fail(fmt::format("{} bytes, expected an IDX header of {}", header.size(), header_bytes));
  constexpr std::uint32_t kUnsignedByte = 0x08;
  const std::uint32_t want = kUnsignedByte << 8 | static_cast<std::uint32_t>(dims);
  const std::uint32_t magic = read_big_endian(header.data());
  if (magic != want)
    fail(fmt::format("magic number {:#010x}, expected {:#010x} (unsigned bytes, {} {})", magic,
                     want, dims, dims == 1 ? "dimension" : "dimensions"));
  IdxArray array;
  std::int64_t count = 1;
  for (int d = 0; d < dims; ++d) {
    const std::uint32_t size = read_big_endian(header.data() + 4 + 4 * d);
    array.sizes.push_back(size);
    // Saturates: no file is that long, so the check of the size fails as it should.
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() - 64;
    count = size != 0 && count > kMost / size ? kMost : count * size;
  }
  if (file.is_compressed()) check_room(count, path.string());
  array.values = file.read_up_to(static_cast<std::size_t>(count));
  const std::string expected = fmt::format("{} ({})", count, fmt::join(array.sizes, " x "));
  if (std::ssize(array.values) < count)
    fail(fmt::format("{} bytes of values, expected {}: the file is cut off", array.values.size(),
                     expected));
  if (!file.read_up_to(1).empty())
    fail(fmt::format("more bytes of values than {}: the file has trailing bytes", expected));
  return array;
}

std::unique_ptr<Dataset> load_idx(const IdxOptions& options) {
  const std::string prefix = options.split == Split::kTrain ? "train" : "t10k";
  IdxFile images = find_idx(options.folder / (prefix + "-images-idx3-ubyte"), 3);
  const IdxFile labels = find_idx(options.folder / (prefix + "-labels-idx1-ubyte"), 1);
  if (labels.array.sizes[0] != images.array.sizes[0])
    throw Error(ExitCode::kBadData,
                fmt::format("{}: {} labels, expected {} as there are images in {}", labels.name(),
                            labels.array.sizes[0], images.array.sizes[0], images.name()));
  ImageContent content = image_content(images, options.transform);
  content.class_names = options.class_names.empty()
                            ? find_class_names(options.folder, labels.array.values, options.classes)
                            : options.class_names;
  for (const std::uint8_t label : labels.array.values) {
    if (label >= content.class_names.size())
      throw Error(ExitCode::kBadData,
                  fmt::format("{}: item {} has label {}, expected 0 to {}", labels.name(),
                              content.labels.size(), label, content.class_names.size() - 1),
                  "classes.txt beside it has a line for each label, where it is there");
    content.labels.push_back(label);
  }
  auto dataset = std::make_unique<ImageDataset>(std::move(content));
  dataset->set_sources({images.source, labels.source});
  return dataset;
}

std::unique_ptr<Dataset> load_idx_images(const std::filesystem::path& file,
                                         const IdxOptions& options) {
  IdxFile images = find_idx(file, 3);
  ImageContent content = image_content(images, options.transform);
  content.class_names = options.class_names;
  content.labels.assign(images.array.sizes[0], -1);
  return std::make_unique<ImageDataset>(std::move(content));
}

namespace {

class IdxFiles : public ImageKind {
 public:
  std::string summary() const override { return "IDX files"; }
  void check(const DataOptions& data, ConfigErrors& errors) const override {
    data.check_folder("train-images-idx3-ubyte and train-labels-idx1-ubyte", errors);
  }
  OpenedData open(const DataRequest& request) const override {
    return {.items = load_idx(options(request))};
  }

 protected:
  static IdxOptions options(const DataRequest& request) {
    return {.folder = request.folder,
            .split = request.split,
            .classes = std::ssize(request.known_classes),
            .transform = request.transform};
  }

 private:
  std::unique_ptr<Dataset> open_records(const DataRequest& request,
                                        const std::filesystem::path& file) const override {
    return load_idx_images(file,
                           {.class_names = request.known_classes, .transform = request.transform});
  }
};
VCAS_REGISTER_PART(DataKind, "idx", IdxFiles);

struct FashionMnist final : IdxFiles {
  void check(const DataOptions&, ConfigErrors&) const override {}
  OpenedData open(const DataRequest& request) const override {
    return {.items = load_idx(fashion_mnist(options(request)))};
  }
};
VCAS_REGISTER_PART(DataKind, "fashion_mnist", FashionMnist);

}  // namespace

}  // namespace vcas
