#include "data/idx.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "core/compressed_file.h"
#include "core/error.h"
#include "data/image_dataset.h"

namespace vcas {
namespace {

std::uint32_t read_big_endian(const std::uint8_t* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
         std::uint32_t{bytes[2]} << 8 | bytes[3];
}

struct IdxFile {
  std::string name;
  IdxArray array;
};

IdxFile read_idx(const std::filesystem::path& path, int dims) {
  const std::string name =
      find_plain_or_compressed(path,
                               "Fashion-MNIST: apt-get install dataset-fashion-mnist "
                               "puts it into /usr/share/datasets/fashion-mnist")
          .string();
  return {name, parse_idx(read_decompressed(name), dims, name)};
}

}  // namespace

IdxArray parse_idx(const std::vector<std::uint8_t>& bytes, int dims, const std::string& name) {
  const std::size_t header = 4 + 4 * static_cast<std::size_t>(dims);
  if (bytes.size() < header) {
    throw Error(ExitCode::kBadData, fmt::format("{}: {} bytes, expected an IDX header of {}", name,
                                                bytes.size(), header));
  }
  constexpr std::uint32_t kUnsignedByte = 0x08;
  const std::uint32_t want = kUnsignedByte << 8 | static_cast<std::uint32_t>(dims);
  const std::uint32_t magic = read_big_endian(bytes.data());
  if (magic != want) {
    throw Error(ExitCode::kBadData,
                fmt::format("{}: magic number {:#010x}, expected {:#010x} (unsigned bytes, {} {})",
                            name, magic, want, dims, dims == 1 ? "dimension" : "dimensions"));
  }
  IdxArray array;
  std::uint64_t count = 1;
  for (int d = 0; d < dims; ++d) {
    const std::uint32_t size = read_big_endian(bytes.data() + 4 + 4 * d);
    array.sizes.push_back(size);
    // Saturates: no file is that long, so the check of the size fails as it should.
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max() - 64;
    count = size != 0 && count > kMost / size ? kMost : count * size;
  }
  if (bytes.size() - header != count) {
    throw Error(ExitCode::kBadData,
                fmt::format("{}: {} bytes of values, expected {} ({}): the file {}", name,
                            bytes.size() - header, count, fmt::join(array.sizes, " x "),
                            bytes.size() - header < count ? "is cut off" : "has trailing bytes"));
  }
  array.values.assign(bytes.begin() + static_cast<std::ptrdiff_t>(header), bytes.end());
  return array;
}

std::unique_ptr<Dataset> load_idx(const IdxOptions& options) {
  const std::string prefix = options.split == Split::kTrain ? "train" : "t10k";
  IdxFile images = read_idx(options.folder / (prefix + "-images-idx3-ubyte"), 3);
  const IdxFile labels = read_idx(options.folder / (prefix + "-labels-idx1-ubyte"), 1);
  if (labels.array.sizes[0] != images.array.sizes[0]) {
    throw Error(ExitCode::kBadData,
                fmt::format("{}: {} labels, expected {} as there are images in {}", labels.name,
                            labels.array.sizes[0], images.array.sizes[0], images.name));
  }
  ImageContent content;
  content.height = images.array.sizes[1];
  content.width = images.array.sizes[2];
  content.pixels = std::move(images.array.values);
  content.class_names = options.class_names;
  content.transform = options.transform;
  if (content.class_names.empty()) {
    content.class_names = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                           "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};
  }
  if (content.transform.mean.empty()) content.transform.mean = {0.2860f};
  if (content.transform.std.empty()) content.transform.std = {0.3530f};
  for (const std::uint8_t label : labels.array.values) {
    if (label >= content.class_names.size()) {
      throw Error(ExitCode::kBadData,
                  fmt::format("{}: item {} has label {}, expected 0 to {}", labels.name,
                              content.labels.size(), label, content.class_names.size() - 1));
    }
    content.labels.push_back(label);
  }
  auto dataset = std::make_unique<ImageDataset>(std::move(content));
  dataset->set_sources({source_file(images.name), source_file(labels.name)});
  return dataset;
}

}  // namespace vcas
