#include "data/image_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/content_hash.h"
#include "core/error.h"
#include "core/nearest_name.h"
#include "data/image_file.h"
#include "data/image_kind.h"
#include "data/text_lines.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

// Names of what lies in a folder, sorted, without hidden ones.
struct FolderEntries {
  std::vector<std::string> folders, files;
};

FolderEntries list_folder(const fs::path& folder) try {
  FolderEntries entries;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (std::string name = entry.path().filename(); !name.starts_with('.'))
      (entry.is_directory() ? entries.folders : entries.files).push_back(std::move(name));
  std::ranges::sort(entries.folders);
  std::ranges::sort(entries.files);
  return entries;
} catch (const fs::filesystem_error& error) {
  fail_listing(error);
}

// The files of all classes, before any is decoded.
struct FoundImages {
  ImageFilesContent content;
  std::uint64_t hash = 0;  // of names and sizes: reading all images would take as long as an epoch
  std::vector<std::string> left_out;  // as of ImageFolder
};

FoundImages find_images(const fs::path& folder, const std::vector<std::string>& asked_classes) {
  if (!fs::is_directory(folder))
    throw Error(ExitCode::kNoInput, fmt::format("{}: no such folder", folder.string()),
                fmt::format("data.folder holds a folder for each class, as in {0}/train/cat/1.jpg "
                            "and {0}/val/cat/2.jpg; data.validation_share=0.1 does without val",
                            folder.parent_path().string()));
  const auto [found, files_beside] = list_folder(folder);
  FoundImages images;
  for (const std::string& file : files_beside)
    if (!has_text_name(file)) images.left_out.push_back((folder / file).string());
  const bool may_lack_classes = !asked_classes.empty();
  std::vector<std::string>& classes = images.content.class_names;
  classes = asked_classes.empty() ? found : asked_classes;
  if (found.empty())
    throw Error(ExitCode::kBadData,
                fmt::format("{}: no folder in it, expected one a class", folder.string()),
                fmt::format("the images of a class belong into a folder with the name of the "
                            "class, as in {}/cat/1.jpg",
                            folder.string()));
  std::vector<std::string> unknown, empty, unreadable;
  ContentHash hash;
  for (const std::string& name : found) {
    if (const std::string fault = text_fault(name); !fault.empty())
      throw Error(ExitCode::kBadData,
                  fmt::format("{}: the name of a class: {}", (folder / name).string(), fault),
                  "names of classes are UTF-8: rename the folder");
    const FolderFiles files = find_image_files(folder / name);
    for (const fs::path& file : files.others) images.left_out.push_back(file.string());
    if (files.images.empty()) {
      empty.push_back(name);
      continue;
    }
    const auto known = std::find(classes.begin(), classes.end(), name);
    if (known == classes.end()) unknown.push_back(name);
    for (const fs::path& file : files.images) {
      if (::access(file.c_str(), R_OK) != 0) unreadable.push_back(file.string());
      hash.add(file.lexically_relative(folder).string());
      hash.add_number(fs::is_regular_file(file) ? fs::file_size(file) : 0);
      images.content.files.push_back(file.string());
      images.content.labels.push_back(static_cast<std::int32_t>(known - classes.begin()));
    }
  }
  if (!unknown.empty())
    throw Error(ExitCode::kBadData,
                fmt::format("{}: {} of {} classes are not those of the training data: {}",
                            folder.string(), unknown.size(), found.size(), some_of(unknown)),
                "evaluation data may lack classes, but have no others");
  if (!empty.empty() && (!may_lack_classes || empty.size() == found.size()))
    throw Error(ExitCode::kBadData,
                fmt::format("{}: {} classes without images: {}", folder.string(), empty.size(),
                            some_of(empty)),
                "images are files whose name ends in .jpg, .jpeg or .png");
  if (!unreadable.empty())
    throw Error(ExitCode::kNoInput,
                fmt::format("{}: {} files cannot be read: {}", folder.string(), unreadable.size(),
                            some_of(unreadable)),
                "links may lead nowhere, or permissions be missing");
  images.hash = hash.value();
  return images;
}

}  // namespace

std::vector<std::string> evaluation_parts(const fs::path& folder) {
  std::vector<std::string> parts;
  for (const char* name : {"val", "valid", "validation", "test"}) {
    if (!fs::is_directory(folder / name)) continue;
    const FolderEntries entries = list_folder(folder / name);
    if (!entries.folders.empty() || !entries.files.empty()) parts.emplace_back(name);
  }
  if (parts.empty()) parts.emplace_back("val");
  return parts;
}

ImageFolder load_image_folder(const ImageFolderOptions& options) {
  const fs::path folder = options.folder / options.part;
  FoundImages images = find_images(folder, options.classes);
  ImageFilesContent& content = images.content;
  const std::int64_t size = options.transform.size;
  content.shape = {3, size, size};
  content.transform = options.transform;
  if (content.transform.mean.empty()) content.transform.mean = {0.485f, 0.456f, 0.406f};
  if (content.transform.std.empty()) content.transform.std = {0.229f, 0.224f, 0.225f};
  ImageFolder loaded;
  loaded.left_out = std::move(images.left_out);
  if (options.check) {
    loaded.checked = std::ssize(content.files);
    loaded.skipped = check_images(*options.check, content);
  }
  content.contents = std::make_shared<FolderContents>(content.files.size());
  const SourceFile source{folder, images.hash, content.contents};
  loaded.data = std::make_unique<ImageFilesDataset>(std::move(content));
  loaded.data->set_sources({source});
  return loaded;
}

namespace {

class ImageFolders final : public ImageKind {
 public:
  void fields(Setting& v) {
    add_image_section(v).field("eval_folder", eval_folder_,
                               "Sub-folder of image_folder to evaluate on; empty: the first of "
                               "val, valid, validation and test.");
  }

  std::string summary() const override {
    return "JPEG and PNG files, train/CLASS/FILE and val/CLASS/FILE";
  }
  DataFacts facts() const override {
    return {.needs_size = image_.size == 0, .has_class_folders = true, .is_predictable = true};
  }
  void check(const DataOptions& data, ConfigErrors& errors) const override {
    data.check_folder("train/cat/1.jpg and val/cat/2.jpg", errors);
    if (crop_padding_ > 0)
      errors.add({"crop_padding", "type"},
                 "needs images of one size, as idx, cifar10 and cifar100 have; to crop images of a "
                 "folder, set data.image.crop_scale, for example to [0.08,1]");
  }
  std::vector<std::string> idle_settings(const DataOptions& data) const override {
    if (eval_folder_.empty() || data.validation_share == 0) return {};
    return {"data.image.eval_folder has no effect: data.validation_share is above 0"};
  }

  OpenedData open(const DataRequest& request) const override {
    ImageFolderOptions options{.folder = request.folder,
                               .classes = request.known_classes,
                               .transform = request.transform,
                               .check = request.check};
    OpenedData images;
    if (request.split == Split::kTest && !eval_folder_.empty()) {
      options.part = eval_folder_;
    } else if (request.split == Split::kTest) {
      const std::vector<std::string> parts = evaluation_parts(options.folder);
      options.part = parts.front();
      if (parts.size() > 1)
        images.note =
            fmt::format("{} is evaluated on, and {} is not: data.image.eval_folder decides",
                        (options.folder / parts[0]).string(), (options.folder / parts[1]).string());
    }
    ImageFolder folder = load_image_folder(options);
    images.items = std::move(folder.data);
    images.checked = folder.checked;
    images.skipped = std::move(folder.skipped);
    if (!folder.left_out.empty())
      images.note += fmt::format(
          "{}{} files of {} were left out, the first: {}; images are .jpg, .jpeg and .png files in "
          "folders of classes",
          images.note.empty() ? "" : "; ", folder.left_out.size(),
          (options.folder / options.part).string(), folder.left_out.front());
    return images;
  }

 private:
  std::string eval_folder_;
};
VCAS_REGISTER_PART(DataKind, "image_folder", ImageFolders);

}  // namespace

}  // namespace vcas
