// A folder of image files, one sub-folder for each class, as ImageNet's: folder/train/CLASS/FILE
// and folder/val/CLASS/FILE.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/image_transform.h"

namespace vcas {

struct ImageFolderOptions {
  std::filesystem::path folder = {};
  Split split = Split::kTrain;  // kTest: val
  // Names of the classes in order. Empty: those of the sub-folders, sorted.
  std::vector<std::string> classes = {};
  ImageTransformOptions transform = {};  // with a size; without mean or std: those of ImageNet
};

// Classes are numbered in the order of their names, as bytes, and files sorted by name; both as
// torchvision's ImageFolder. Files may lie deeper in a class; hidden ones, those that
// has_image_name does not know and links to folders inside a class are left out. Files are decoded
// when they are needed. Missing folders, and files that cannot be opened: kNoInput, with a list.
// Classes without images, or other classes than asked for: kBadData.
std::unique_ptr<Dataset> load_image_folder(const ImageFolderOptions& options);

}  // namespace vcas
