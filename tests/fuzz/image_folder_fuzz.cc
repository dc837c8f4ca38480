// Whatever is in a folder, reading it is kBadData or kNoInput, or gives images of classes.
// Each line is the name of a file in train/. Its last byte chooses bytes, a link or a folder.
#include "data/image_folder.h"
#include "tests/fuzz/fuzz_file.h"

namespace {

void add_entry(const std::filesystem::path& folder, std::string name) {
  const char kind = name.back();
  name.pop_back();
  if (name.empty() || name.find('\0') != name.npos || name.find("..") != name.npos) return;
  std::error_code error;  // of names that are too long, or there already
  const std::filesystem::path path = folder / ("./" + name);
  std::filesystem::create_directories(path.parent_path(), error);
  if (kind == 'l')
    std::filesystem::create_symlink("nowhere", path, error);
  else if (kind == 'f')
    std::filesystem::create_directories(path, error);
  else
    write_fuzz_file(path, reinterpret_cast<const std::uint8_t*>(name.data()), name.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::filesystem::path folder = fuzz_path("image-folder");
  std::filesystem::create_directories(folder / "train");
  std::istringstream lines(std::string(reinterpret_cast<const char*>(data), size));
  for (std::string line; std::getline(lines, line);)
    if (!line.empty()) add_entry(folder / "train", line);
  fuzz_read(
      [] {
        const std::unique_ptr<vcas::Dataset> images =
            vcas::load_image_folder({.folder = folder, .transform = {.size = 8}}).data;
        for (std::int64_t item = 0; item < images->size(); ++item)
          if (images->label(item) < 0 || images->label(item) >= images->classes()) std::abort();
        vcas::Batch batch;
        images->append(0, {}, batch);
      },
      {vcas::ExitCode::kBadData, vcas::ExitCode::kNoInput, vcas::ExitCode::kUnavailable});
  std::filesystem::remove_all(folder);
  return 0;
}
