// IDX, the format of MNIST and its relatives: 00 00 type dims, sizes as big-endian u32, values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/image_transform.h"

namespace vcas {

struct IdxArray {
  std::vector<std::int64_t> sizes;
  std::vector<std::uint8_t> values;
};

// An array of unsigned bytes with `dims` dimensions: magic 0x801 for labels, 0x803 for images.
// `name` stands in messages. Anything else, too short or too long: kBadData.
IdxArray parse_idx(const std::vector<std::uint8_t>& bytes, int dims, const std::string& name);

// The defaults are Fashion-MNIST as Debian's package dataset-fashion-mnist installs it. Empty lists
// take Fashion-MNIST's own values.
struct IdxOptions {
  // Holds {train,t10k}-{images-idx3,labels-idx1}-ubyte, plain or compressed.
  std::filesystem::path folder = "/usr/share/datasets/fashion-mnist";
  Split split = Split::kTrain;
  std::vector<std::string> class_names = {};  // a label must be below their number
  ImageTransformOptions transform = {};       // without mean or std: those of Fashion-MNIST
};

std::unique_ptr<Dataset> load_idx(const IdxOptions& options);

}  // namespace vcas
