// The binary version of CIFAR-10 and CIFAR-100: fixed-size records of label(s), then 1024 red, 1024
// green and 1024 blue pixels.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/image_transform.h"

namespace vcas {

enum class CifarKind { kCifar10, kCifar100 };  // of the latter the fine labels

struct CifarOptions {
  std::filesystem::path folder = {};
  CifarKind kind = CifarKind::kCifar10;
  Split split = Split::kTrain;
  // Read in this order, plain or compressed, all required. Empty: the usual names; of the five
  // training files of CIFAR-10 those that are there, one at least.
  std::vector<std::string> files = {};
  ImageTransformOptions transform = {};  // without mean or std: the usual values
};

// Class names come from batches.meta.txt or fine_label_names.txt where the folder has it, else they
// are numbers.
std::unique_ptr<Dataset> load_cifar(const CifarOptions& options);

}  // namespace vcas
