#include "data/image_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "data/image_file.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

// ITU-R 601-2 luma, rounded as Pillow's convert("L").
std::vector<std::uint8_t> grey_of(const std::vector<std::uint8_t>& rgb) {
  std::vector<std::uint8_t> grey(rgb.size() / 3);
  for (std::size_t i = 0; i < grey.size(); ++i)
    grey[i] = static_cast<std::uint8_t>(
        (rgb[3 * i] * 19595 + rgb[3 * i + 1] * 38470 + rgb[3 * i + 2] * 7471 + 0x8000) >> 16);
  return grey;
}

struct BadImage {
  std::size_t file;   // its number
  std::string fault;  // "PATH: why"
};

// In the order of the files.
std::vector<BadImage> find_bad_images(const std::vector<std::string>& files,
                                      const ImageCheck& options) {
  std::vector<BadImage> bad;
  std::int64_t done = 0;
  std::exception_ptr failure;  // of the machine or the build, not of an image
  std::mutex mutex;            // of the three
  std::atomic<std::size_t> next = 0;
  const auto check_file = [&](std::size_t file) {
    std::string fault;
    try {
      read_image(files[file]);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kBadData && error.code() != ExitCode::kNoInput) throw;
      fault = error.what();
    }
    const std::lock_guard lock(mutex);
    if (!fault.empty()) bad.push_back({file, fault});
    if (options.progress) options.progress(++done, std::ssize(files));
  };
  const auto work = [&] {
    try {
      for (std::size_t file = next++; file < files.size(); file = next++) check_file(file);
    } catch (...) {
      next = files.size();
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> workers;
    for (int i = 0; i < options.threads; ++i) workers.emplace_back(work);
  }
  if (failure) std::rethrow_exception(failure);
  std::ranges::sort(bad, {}, &BadImage::file);
  return bad;
}

}  // namespace

ImageFilesDataset::ImageFilesDataset(ImageFilesContent content)
    : LabelledImages(std::move(content)) {
  VCAS_CHECK(content_.files.size() == content_.labels.size(), "a label for each file");
}

void ImageFilesDataset::append(std::int64_t index, const ItemDraw& draw, Batch& out) const {
  VCAS_CHECK(index >= 0 && index < size(), fmt::format("item {} of {}", index, size()));
  const std::int64_t channels = content_.shape[0];
  const std::string& file = content_.files[index];
  const std::string bytes = read_file(file);
  if (content_.contents) content_.contents->note(index, bytes, file);
  DecodedImage image = decode_image(bytes, file);
  if (channels == 1) image.pixels = grey_of(image.pixels);
  transform_.append(interleaved_view(image.pixels.data(), channels, image.height, image.width),
                    index, draw, out.values);
}

FolderFiles find_image_files(const fs::path& folder) try {
  FolderFiles files;
  for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::end(entry); ++entry) {
    const fs::path& path = entry->path();
    if (path.filename().string().starts_with('.')) {
      entry.disable_recursion_pending();
    } else if (!entry->is_directory() && has_image_name(path)) {
      files.images.push_back(path);
    } else if (!entry->is_directory() && !has_text_name(path)) {
      files.others.push_back(path);
    }
  }
  std::ranges::sort(files.images);
  std::ranges::sort(files.others);
  return files;
} catch (const fs::filesystem_error& error) {
  fail_listing(error);
}

std::vector<std::string> check_images(const ImageCheck& check, ImageFilesContent& content) {
  const std::vector<BadImage> bad = find_bad_images(content.files, check);
  std::vector<std::string> faults;
  for (const BadImage& image : bad) faults.push_back(image.fault);
  if (!bad.empty() && (!check.skip || bad.size() == content.files.size())) {
    constexpr std::size_t kShown = 10;
    const std::size_t count = faults.size();
    if (count > kShown) {
      faults.resize(kShown);
      faults.emplace_back("...");
    }
    throw Error(ExitCode::kBadData,
                fmt::format("{} of {} images are bad\n  {}", count, content.files.size(),
                            fmt::join(faults, "\n  ")),
                check.skip ? "replace them: not one is left"
                           : "replace them, or take them out of the folder; "
                             "data.skip_bad_rows=true leaves them out");
  }
  std::size_t kept = 0;
  for (std::size_t file = 0; file < content.files.size(); ++file) {
    if (file - kept < bad.size() && bad[file - kept].file == file) continue;
    std::swap(content.files[kept], content.files[file]);
    std::swap(content.labels[kept++], content.labels[file]);
  }
  content.files.resize(kept);
  content.labels.resize(kept);
  return faults;
}

}  // namespace vcas
