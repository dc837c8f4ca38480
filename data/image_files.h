// Files of images, decoded when their turn comes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/image_dataset.h"

namespace vcas {

struct ImageFilesContent {
  std::vector<std::string> files;    // [N]
  std::vector<std::int32_t> labels;  // [N], -1 where unknown
  std::vector<std::string> class_names;
  std::vector<std::int64_t> shape;  // {1 or 3, height, width} of what comes out
  ImageTransformOptions transform;
  std::shared_ptr<FolderContents> contents = {};  // null: what is read is not compared
};

class ImageFilesDataset final : public LabelledImages<ImageFilesContent> {
 public:
  explicit ImageFilesDataset(ImageFilesContent content);
  // Throws what read_image throws, and kBadData for a file that has changed.
  void append(std::int64_t index, const ItemDraw& draw, Batch& out) const override;
};

struct FolderFiles {
  std::vector<std::filesystem::path> images;  // those that has_image_name knows
  std::vector<std::filesystem::path> others;  // the rest, without those that has_text_name knows
};

// Files of a folder and of those in it, sorted. Hidden ones and links to folders are left out.
// A folder that cannot be listed: kNoInput.
FolderFiles find_image_files(const std::filesystem::path& folder);

// How all images are decoded before they are used.
struct ImageCheck {
  bool skip = false;  // bad images are left out, instead of an error
  int threads = 1;
  // From any thread, one at a time.
  std::function<void(std::int64_t done, std::int64_t total)> progress = {};
};

// Decodes all files and leaves the bad ones out of the content: what is wrong with each, "PATH:
// why". No good one is left, or `skip` is not set: kBadData.
std::vector<std::string> check_images(const ImageCheck& check, ImageFilesContent& content);

}  // namespace vcas
