// A folder of image files, one sub-folder for each class, as ImageNet's: folder/train/CLASS/FILE
// and folder/val/CLASS/FILE.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/image_files.h"
#include "data/image_transform.h"

namespace vcas {

struct ImageFolderOptions {
  std::filesystem::path folder = {};
  std::string part = "train";  // the sub-folder to read
  // Names of the classes in order. Empty: those of the sub-folders, sorted.
  std::vector<std::string> classes = {};
  ImageTransformOptions transform = {};  // with a size; without mean or std: those of ImageNet
  std::optional<ImageCheck> check = {};  // none: a bad image is an error when its turn comes
};

struct ImageFolder {
  std::unique_ptr<Dataset> data;
  std::int64_t checked = 0;          // images
  std::vector<std::string> skipped;  // what is wrong with those that were left out
  // Files in no folder of a class, and those of other kinds (FolderFiles::others).
  std::vector<std::string> left_out;
};

// Names of the sub-folders that evaluation images may lie in, the one to read first.
// They are those with something in them of val, valid, validation and test, or val where none is.
std::vector<std::string> evaluation_parts(const std::filesystem::path& folder);

// Classes are numbered in the order of their names, as bytes, and files sorted by name; both as
// torchvision's ImageFolder. Files are those of find_image_files, in a class or deeper. Missing
// folders, and files that cannot be opened: kNoInput, with a list. Bad images, classes without
// images, or other classes than asked for: kBadData. Where classes are asked for, a class without
// images counts as missing, unless all are without.
ImageFolder load_image_folder(const ImageFolderOptions& options);

}  // namespace vcas
