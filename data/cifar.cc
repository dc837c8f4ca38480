#include "data/cifar.h"

#include <fmt/format.h>

#include <utility>

#include "core/compressed_file.h"
#include "core/error.h"
#include "data/image_dataset.h"
#include "data/image_kind.h"

namespace vcas {
namespace {

constexpr std::int64_t kSide = 32;
constexpr std::int64_t kPixels = 3 * kSide * kSide;

struct KindFacts {
  std::int64_t label_bytes;  // the last one counts
  std::int64_t classes;
  const char* names_file;
  const char* archive;
  std::vector<std::string> train_files;
  const char* test_file;
  std::vector<float> mean;
  std::vector<float> std;
};

KindFacts kind_facts(CifarKind kind) {
  if (kind == CifarKind::kCifar10)
    return {1,
            10,
            "batches.meta.txt",
            "cifar-10-binary.tar.gz",
            {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
             "data_batch_5.bin"},
            "test_batch.bin",
            {0.4914f, 0.4822f, 0.4465f},
            {0.2470f, 0.2435f, 0.2616f}};
  return {2,
          100,
          "fine_label_names.txt",
          "cifar-100-binary.tar.gz",
          {"train.bin"},
          "test.bin",
          {0.5071f, 0.4865f, 0.4409f},
          {0.2673f, 0.2564f, 0.2762f}};
}

std::vector<std::filesystem::path> find_files(const CifarOptions& options, const KindFacts& facts) {
  const std::string hint = fmt::format(
      "unpack {} from https://www.cs.toronto.edu/~kriz/cifar.html there (plain or compressed "
      "files)",
      facts.archive);
  std::vector<std::string> names = options.files;
  if (names.empty() && options.split == Split::kTrain) names = facts.train_files;
  if (names.empty()) names = {facts.test_file};
  const bool any_will_do = options.files.empty() && names.size() > 1;
  std::vector<std::filesystem::path> found;
  for (const std::string& name : names) {
    const std::filesystem::path path = options.folder / name;
    if (any_will_do && !plain_or_compressed(path)) continue;
    found.push_back(find_plain_or_compressed(path, hint));
  }
  if (found.empty())
    throw Error(ExitCode::kNoInput,
                fmt::format("{}: none of data_batch_1.bin to data_batch_5.bin, plain or compressed",
                            options.folder.string()),
                hint);
  return found;
}

std::vector<std::string> find_class_names(const std::filesystem::path& path, std::int64_t classes) {
  if (!std::filesystem::exists(path)) return numbered_classes(classes);
  std::vector<std::string> names = read_class_names(path);
  if (std::ssize(names) != classes)
    throw Error(ExitCode::kBadData, fmt::format("{}: {} class names, expected {}", path.string(),
                                                names.size(), classes));
  return names;
}

}  // namespace

std::unique_ptr<Dataset> load_cifar(const CifarOptions& options) {
  const KindFacts facts = kind_facts(options.kind);
  const std::int64_t record = facts.label_bytes + kPixels;
  constexpr std::size_t kMostBytes = 1 << 30;  // of a file, twenty times those of CIFAR
  ImageContent content;
  content.shape = {3, kSide, kSide};
  content.transform = options.transform;
  if (content.transform.mean.empty()) content.transform.mean = facts.mean;
  if (content.transform.std.empty()) content.transform.std = facts.std;
  std::vector<SourceFile> sources;
  for (const std::filesystem::path& path : find_files(options, facts)) {
    sources.push_back(source_file(path));
    const std::vector<std::uint8_t> bytes = read_decompressed(path, kMostBytes);
    const std::int64_t records = std::ssize(bytes) / record;
    const std::int64_t rest = std::ssize(bytes) % record;
    if (records == 0 || rest != 0)
      throw Error(ExitCode::kBadData,
                  fmt::format("{}: {} bytes, expected a multiple of {}: {} records and {} bytes",
                              path.string(), bytes.size(), record, records, rest),
                  "is the file cut off, or of another version of CIFAR?");
    for (std::int64_t i = 0; i < records; ++i) {
      const auto begin = bytes.begin() + i * record;
      const std::uint8_t label = begin[facts.label_bytes - 1];
      if (label >= facts.classes)
        throw Error(ExitCode::kBadData, fmt::format("{}: record {} has label {}, expected 0 to {}",
                                                    path.string(), i, label, facts.classes - 1));
      content.labels.push_back(label);
      content.pixels.insert(content.pixels.end(), begin + facts.label_bytes, begin + record);
    }
  }
  check_unchanged(sources);
  content.class_names = find_class_names(options.folder / facts.names_file, facts.classes);
  auto dataset = std::make_unique<ImageDataset>(std::move(content));
  dataset->set_sources(std::move(sources));
  return dataset;
}

namespace {

class CifarFiles : public ImageKind {
 public:
  CifarFiles(CifarKind kind, const char* example) : kind_(kind), example_(example) {}

  std::string summary() const override { return "its binary files"; }
  void check(const DataOptions& data, ConfigErrors& errors) const override {
    data.check_folder(example_, errors);
  }
  OpenedData open(const DataRequest& request) const override {
    OpenedData opened{.items = load_cifar({.folder = request.folder,
                                           .kind = kind_,
                                           .split = request.split,
                                           .transform = request.transform})};
    constexpr std::int64_t kTrainingItems = 50'000;
    if (request.split == Split::kTrain && opened.items->size() < kTrainingItems)
      opened.note = fmt::format("{} of the {} training images: files are missing in {}",
                                opened.items->size(), kTrainingItems, request.folder.string());
    return opened;
  }

 private:
  std::unique_ptr<Dataset> open_records(const DataRequest& request,
                                        const std::filesystem::path& file) const override {
    return load_cifar({.folder = file.parent_path(),
                       .kind = kind_,
                       .files = {file.filename().string()},
                       .transform = request.transform});
  }

  CifarKind kind_;
  const char* example_;
};

struct Cifar10 final : CifarFiles {
  Cifar10() : CifarFiles(CifarKind::kCifar10, "data_batch_1.bin to test_batch.bin") {}
};
VCAS_REGISTER_PART(DataKind, "cifar10", Cifar10);

struct Cifar100 final : CifarFiles {
  Cifar100() : CifarFiles(CifarKind::kCifar100, "train.bin and test.bin") {}
};
VCAS_REGISTER_PART(DataKind, "cifar100", Cifar100);

}  // namespace

}  // namespace vcas
