#include "data/image_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/content_hash.h"
#include "core/error.h"
#include "data/image_file.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

class ImageFolderDataset final : public Dataset {
 public:
  ImageFolderDataset(std::vector<std::string> class_names, ImageTransformOptions transform)
      : class_names_(std::move(class_names)), transform_(std::move(transform), 3) {}

  void add(const fs::path& file, std::int32_t label) {
    files_.push_back(file.string());
    labels_.push_back(label);
  }

  std::int64_t size() const override { return std::ssize(labels_); }
  std::vector<std::int64_t> item_shape() const override { return transform_.shape(); }
  const std::vector<std::string>& class_names() const override { return class_names_; }
  std::int32_t label(std::int64_t index) const override { return labels_[index]; }
  void append(std::int64_t index, const ItemDraw& draw, Batch& out) const override {
    VCAS_CHECK(index >= 0 && index < size(), fmt::format("item {} of {}", index, size()));
    const DecodedImage image = read_image(files_[index]);
    transform_.append(interleaved_view(image.pixels.data(), 3, image.height, image.width), index,
                      draw, out.values);
  }
  const ImageTransformOptions* image_transform() const override { return &transform_.options(); }

 private:
  std::vector<std::string> class_names_;
  ImageTransform transform_;
  std::vector<std::string> files_;  // [N]
  std::vector<std::int32_t> labels_;
};

// A folder that cannot be listed is no bug of the program.
template <class Call>
auto listing(Call call) {
  try {
    return call();
  } catch (const fs::filesystem_error& error) {
    throw Error(ExitCode::kNoInput,
                fmt::format("{}: {}", error.path1().string(), error.code().message()));
  }
}

std::vector<std::string> sub_folders(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (entry.is_directory() && !is_hidden(entry.path()))
      names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<fs::path> image_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::end(entry); ++entry) {
    const fs::path& path = entry->path();
    if (is_hidden(path)) {
      entry.disable_recursion_pending();
    } else if (!entry->is_directory() && has_image_name(path)) {
      files.push_back(path);
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 5;
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kShown));
  return fmt::format("{}{}", fmt::join(names.begin(), end, ", "),
                     names.size() > kShown ? ", ..." : "");
}

}  // namespace

std::unique_ptr<Dataset> load_image_folder(const ImageFolderOptions& options) {
  const fs::path folder = options.folder / (options.split == Split::kTrain ? "train" : "val");
  if (!fs::is_directory(folder))
    throw Error(ExitCode::kNoInput, fmt::format("{}: no such folder", folder.string()),
                "data.folder holds train/CLASS/FILE.jpg and val/CLASS/FILE.jpg, a folder a class");
  const std::vector<std::string> found = listing([&] { return sub_folders(folder); });
  const std::vector<std::string> classes = options.classes.empty() ? found : options.classes;
  if (classes.empty())
    throw Error(ExitCode::kBadData,
                fmt::format("{}: no folder in it, expected one a class", folder.string()),
                "the images of a class belong into a folder with the name of the class");
  ImageTransformOptions transform = options.transform;
  if (transform.mean.empty()) transform.mean = {0.485f, 0.456f, 0.406f};
  if (transform.std.empty()) transform.std = {0.229f, 0.224f, 0.225f};
  auto data = std::make_unique<ImageFolderDataset>(classes, std::move(transform));
  std::vector<std::string> unknown, empty, unreadable;
  ContentHash hash;  // of names and sizes: reading all images would take as long as an epoch
  for (const std::string& name : found) {
    const auto known = std::find(classes.begin(), classes.end(), name);
    if (known == classes.end()) unknown.push_back(name);
    const std::vector<fs::path> files = listing([&] { return image_files(folder / name); });
    if (files.empty()) empty.push_back(name);
    for (const fs::path& file : files) {
      if (::access(file.c_str(), R_OK) != 0) unreadable.push_back(file.string());
      hash.add(file.lexically_relative(folder).string());
      hash.add_number(fs::is_regular_file(file) ? fs::file_size(file) : 0);
      data->add(file, static_cast<std::int32_t>(known - classes.begin()));
    }
  }
  if (!unknown.empty())
    throw Error(ExitCode::kBadData,
                fmt::format("{}: {} of {} classes are not those of the training data: {}",
                            folder.string(), unknown.size(), found.size(), some_of(unknown)),
                "both folders must have the same names");
  if (!empty.empty())
    throw Error(ExitCode::kBadData,
                fmt::format("{}: {} classes without images: {}", folder.string(), empty.size(),
                            some_of(empty)),
                "images are files whose name ends in .jpg, .jpeg or .png");
  if (!unreadable.empty())
    throw Error(ExitCode::kNoInput,
                fmt::format("{}: {} files cannot be read: {}", folder.string(), unreadable.size(),
                            some_of(unreadable)),
                "links may lead nowhere, or permissions be missing");
  data->set_sources({{folder, hash.value()}});
  return data;
}

}  // namespace vcas
