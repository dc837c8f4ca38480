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
// Anything else, too short or too long: kBadData. No more is decompressed than the header says.
IdxArray read_idx(const std::filesystem::path& file, int dims);

struct IdxOptions {
  // Holds {train,t10k}-{images-idx3,labels-idx1}-ubyte, plain or compressed.
  std::filesystem::path folder = {};
  Split split = Split::kTrain;
  // Names of the classes in order; labels are below their number. Empty: the lines of classes.txt
  // in the folder, where it is there, else numbers: `classes` of them, 0: up to the largest label.
  std::vector<std::string> class_names = {};
  std::int64_t classes = 0;
  ImageTransformOptions transform = {};  // without mean or std: those of these pixels
};

// What `asked` leaves out is that of Fashion-MNIST, as Debian's package dataset-fashion-mnist
// installs it.
IdxOptions fashion_mnist(IdxOptions asked = {});

std::unique_ptr<Dataset> load_idx(const IdxOptions& options);

// A file of images alone, whose labels are unknown. The options' folder and split do not count.
std::unique_ptr<Dataset> load_idx_images(const std::filesystem::path& file,
                                         const IdxOptions& options);

}  // namespace vcas
