#include "data/idx.h"

#include <cmath>

#include "data/data_kind.h"
#include "tests/data/data_files.h"

using namespace vcas;
using Catch::Matchers::WithinAbs;

namespace {

Bytes idx_file(std::uint32_t magic, const std::vector<std::uint32_t>& sizes, const Bytes& values) {
  Bytes bytes;
  const auto put = [&](std::uint32_t word) {
    for (int shift = 24; shift >= 0; shift -= 8)
      bytes.push_back(static_cast<std::uint8_t>(word >> shift));
  };
  put(magic);
  for (const std::uint32_t size : sizes) put(size);
  return bytes + values;
}

// Three images of 2 x 2, labels 1, 0, 1; a test may replace either file.
struct Files {
  DataFolder folder;

  Files() {
    images(idx_file(0x803, {3, 2, 2}, {0, 51, 102, 153, 204, 255, 0, 0, 1, 2, 3, 4}));
    labels(idx_file(0x801, {3}, {1, 0, 1}));
  }
  void images(const Bytes& bytes) const { folder.write("train-images-idx3-ubyte", bytes); }
  void labels(const Bytes& bytes) const { folder.write("train-labels-idx1-ubyte", bytes); }
  std::unique_ptr<Dataset> load() const {
    return load_idx({.folder = folder.path(),
                     .class_names = {"no", "yes"},
                     .transform = {.mean = {0.2f}, .std = {0.5f}}});
  }
  void check_bad(const std::string& text, const std::string& hint = "") const {
    check_error([&] { load(); }, ExitCode::kBadData, text, hint);
  }
};

}  // namespace

TEST_CASE("idx files become normalised images and labels", "[idx]") {
  const Files files;
  const auto data = files.load();
  CHECK(data->size() == 3);
  CHECK(data->item_shape() == std::vector<std::int64_t>{1, 2, 2});
  CHECK(data->classes() == 2);
  CHECK(data->class_names()[1] == "yes");
  CHECK(data->label(0) == 1);
  CHECK(data->label(1) == 0);
  Batch batch;
  data->append(1, {}, batch);
  data->append(0, {}, batch);
  const float want[] = {1.2f, 1.6f, -0.4f, -0.4f, -0.4f, 0.0f, 0.4f, 0.8f};
  REQUIRE(batch.values.size() == 8);
  for (int i = 0; i < 8; ++i) CHECK_THAT(batch.values[i], WithinAbs(want[i], 1e-6));
}

TEST_CASE("idx files without names or statistics get neutral ones", "[idx]") {
  const Files files;
  const auto load = [&] { return load_idx({.folder = files.folder.path()}); };
  files.labels(idx_file(0x801, {3}, {1, 0, 255}));
  CHECK(load()->class_names() == numbered_classes(256));
  files.folder.write_text("classes.txt", "no\r\nyes\n\nmaybe\n");
  files.check_bad("train-labels-idx1-ubyte: item 2 has label 255, expected 0 to 1", "classes.txt");
  files.labels(idx_file(0x801, {3}, {1, 0, 2}));
  CHECK(load()->class_names() == std::vector<std::string>{"no", "yes", "maybe"});
  files.folder.write_text("classes.txt", "no\nyes\n\nno\n");
  check_error(load, ExitCode::kBadData, "classes.txt:4: an earlier line has the name \"no\" too");
  files.folder.write_text("classes.txt", "no\ncaf\xe9\n");
  check_error(load, ExitCode::kBadData, "classes.txt:2: byte 4 is not valid UTF-8");
  for (const char* blank : {"", "\r\n\n"}) {
    files.folder.write_text("classes.txt", blank);
    check_error(load, ExitCode::kBadData, "classes.txt: no line has the name of a class");
  }
  std::filesystem::remove(files.folder.path() / "classes.txt");

  Batch given;
  load_idx({.folder = files.folder.path(), .transform = {.mean = {0.2f}}})->append(0, {}, given);
  CHECK_THAT(given.values[1], WithinAbs(0.0, 1e-6));  // 51 of 255
  Batch batch;
  const auto data = load();
  for (std::int64_t item = 0; item < data->size(); ++item) data->append(item, {}, batch);
  double sum = 0, squares = 0;
  for (const float value : batch.values) {
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  CHECK_THAT(sum / 12, WithinAbs(0.0, 1e-6));
  CHECK_THAT(squares / 12, WithinAbs(1.0, 1e-6));

  files.images(idx_file(0x803, {3, 2, 2}, Bytes(12, 7)));
  check_error(load, ExitCode::kBadData, "train-images-idx3-ubyte: all pixels are 7");
  files.images(idx_file(0x803, {0, 2, 2}, {}));
  files.labels(idx_file(0x801, {0}, {}));
  check_error(load, ExitCode::kBadData, "train-images-idx3-ubyte: no pixels in it (0 x 2 x 2)");
}

TEST_CASE("bad idx files are refused with what was expected and found", "[idx]") {
  const Files files;
  SECTION("short header") {
    files.images({0, 0, 8, 3, 0});
    files.check_bad("train-images-idx3-ubyte: 5 bytes, expected an IDX header of 16");
  }
  SECTION("other type") {
    files.images(idx_file(0xD03, {3, 2, 2}, Bytes(48)));
    files.check_bad(
        "train-images-idx3-ubyte: magic number 0x00000d03, expected 0x00000803 (unsigned bytes, 3 "
        "dimensions)");
  }
  SECTION("labels where images belong") {
    files.labels(idx_file(0x803, {3, 2, 2}, Bytes(12)));
    files.check_bad("train-labels-idx1-ubyte: magic number 0x00000803, expected 0x00000801");
  }
  SECTION("cut off") {
    files.images(idx_file(0x803, {3, 2, 2}, Bytes(11)));
    files.check_bad("11 bytes of values, expected 12 (3 x 2 x 2): the file is cut off");
  }
  SECTION("trailing bytes") {
    files.labels(idx_file(0x801, {3}, Bytes(4)));
    files.check_bad("more bytes of values than 3 (3): the file has trailing bytes");
  }
  SECTION("a small file that would grow without end") {
    Bytes bomb = gzip(idx_file(0x803, {3, 2, 2}, Bytes(5000000)));
    bomb.resize(bomb.size() / 2);  // nobody gets as far as this fault
    files.images(bomb);
    files.check_bad("more bytes of values than 12 (3 x 2 x 2): the file has trailing bytes");
  }
  SECTION("sizes whose product wraps around to the size of the file") {
    files.images(idx_file(0x803, {0x80000000u, 0x80000000u, 4}, {}));
    files.check_bad("the file is cut off");
  }
  SECTION("a small file that would hold more than the memory") {
    files.images(gzip(idx_file(0x803, {0xFFFFFFFFu, 0xFFFFFFFFu, 4}, {})));
    check_error([&] { files.load(); }, ExitCode::kOutOfMemory,
                "train-images-idx3-ubyte needs 8589934592.0 GiB, and ");
  }
  SECTION("numbers of images and labels differ") {
    files.labels(idx_file(0x801, {2}, {0, 1}));
    files.check_bad("train-labels-idx1-ubyte: 2 labels, expected 3 as there are images in ");
    files.labels(idx_file(0x801, {4}, {0, 1, 0, 1}));
    files.check_bad("train-labels-idx1-ubyte: 4 labels, expected 3 as there are images in ");
  }
  SECTION("label out of range") {
    files.labels(idx_file(0x801, {3}, {1, 0, 2}));
    files.check_bad("train-labels-idx1-ubyte: item 2 has label 2, expected 0 to 1");
  }
  SECTION("corrupt gzip") {
    Bytes packed = gzip(idx_file(0x801, {3}, {1, 0, 1}));
    packed.resize(packed.size() - 3);
    files.labels(packed);
    files.check_bad("train-labels-idx1-ubyte: gzip data is cut off");
  }
}

TEST_CASE("a dataset knows the files it was made from", "[idx]") {
  const Files files;
  const auto hashes = [&] {
    std::vector<std::uint64_t> all;
    const auto data = files.load();
    for (const SourceFile& source : data->sources()) all.push_back(source.hash);
    return all;
  };
  const auto before = hashes();
  REQUIRE(before.size() == 2);
  const auto data = files.load();
  CHECK(data->sources()[1].path.filename() == "train-labels-idx1-ubyte");
  CHECK(hashes() == before);
  files.labels({});  // the value that XXH3's own specification gives for no bytes
  CHECK(source_file(data->sources()[1].path).hash == 0x2D06800538D394C2);
  files.labels(idx_file(0x801, {3}, {1, 1, 1}));
  const auto after = hashes();
  CHECK(after[0] == before[0]);
  CHECK(after[1] != before[1]);
}

TEST_CASE("a mean or std that does not fit is a configuration error", "[idx]") {
  const Files files;
  const auto load = [&](std::vector<float> mean, std::vector<float> std) {
    return [&files, mean, std] {
      load_idx({.folder = files.folder.path(), .transform = {.mean = mean, .std = std}});
    };
  };
  check_error(load({0.1f, 0.2f}, {0.5f}), ExitCode::kBadConfig,
              "mean has 2 values and std has 1, but the images have 1 channels");
  check_error(load({0.1f}, {0.0f}), ExitCode::kBadConfig,
              "data.image.mean 0.1 of channel 0 must be finite, and data.image.std 0 above 0");
  check_error(load({0.1f}, {std::nanf("")}), ExitCode::kBadConfig, "data.image.std nan above 0");
  check_error(load({0.1f}, {HUGE_VALF}), ExitCode::kBadConfig, "std inf above 0");
  check_error(load({std::nanf("")}, {0.5f}), ExitCode::kBadConfig,
              "mean nan of channel 0 must be finite");
}

TEST_CASE("images without labels have the classes and the shape of the training data", "[idx]") {
  const Files files;
  const auto kind = part_kinds<DataKind>().at("idx").make();
  const auto opened = [&](const std::vector<std::int64_t>& shape) {
    return kind->open_unlabelled({.known_classes = {"no", "yes"}},
                                 {files.folder.path() / "train-images-idx3-ubyte"}, shape);
  };
  const OpenedData data = opened({1, 2, 2});
  CHECK(data.items->size() == 3);
  CHECK(data.items->label(0) == -1);
  CHECK(data.items->class_names() == std::vector<std::string>{"no", "yes"});
  check_error(
      [&] {
        opened({1, 4, 4});
      },
      ExitCode::kBadData,
      "train-images-idx3-ubyte: images of 1 x 2 x 2, and the model was trained on 1 x 4 x 4");
}

TEST_CASE("a missing idx file names the path and the command that gets it", "[idx]") {
  const DataFolder folder;
  const Error error = error_of([&] { load_idx({.folder = folder.path(), .split = Split::kTest}); });
  CHECK(error.code() == ExitCode::kNoInput);
  CHECK_THAT(error.what(), ContainsSubstring((folder.path() / "t10k-images-idx3-ubyte").string()));
  CHECK_THAT(error.hint(), ContainsSubstring("apt-get install dataset-fashion-mnist"));
  CHECK_THAT(error.hint(), ContainsSubstring("data.validation_share=0.1 does without the last"));
}

TEST_CASE("idx files are opened with the classes and pixels of the training data", "[idx]") {
  const Files files;
  const auto kind = part_kinds<DataKind>().at("idx").make();
  DataRequest request{.folder = files.folder.path(),
                      .known_classes = numbered_classes(3),
                      .transform = {.mean = {0.2f}, .std = {0.5f}}};
  const OpenedData opened = kind->open(request);
  CHECK(opened.items->classes() == 3);
  Batch batch;
  opened.items->append(0, {}, batch);
  CHECK_THAT(batch.values[0], WithinAbs(-0.4, 1e-6));
  request.split = Split::kTest;
  check_error([&] { kind->open(request); }, ExitCode::kNoInput, "t10k-images-idx3-ubyte");
}

TEST_CASE("Fashion-MNIST keeps what it is asked for", "[idx]") {
  const IdxOptions asked = fashion_mnist(
      {.folder = "x", .class_names = {"a", "b"}, .transform = {.mean = {0.5f}, .std = {1.0f}}});
  CHECK(asked.folder == "x");
  CHECK(asked.class_names == std::vector<std::string>{"a", "b"});
  CHECK(asked.transform.mean == std::vector<float>{0.5f});
  CHECK(asked.transform.std == std::vector<float>{1.0f});
}

TEST_CASE("Fashion-MNIST reads as published", "[idx]") {
  if (!std::filesystem::exists(fashion_mnist().folder)) {
    WARN("skipped: no " << fashion_mnist().folder << "; apt-get install dataset-fashion-mnist");
    return;
  }
  for (const Split split : {Split::kTrain, Split::kTest}) {
    const auto data = load_idx(fashion_mnist({.split = split}));
    const std::int64_t per_class = split == Split::kTrain ? 6000 : 1000;
    CHECK(data->size() == 10 * per_class);
    CHECK(data->item_shape() == std::vector<std::int64_t>{1, 28, 28});
    std::vector<std::int64_t> histogram(data->classes());
    for (std::int64_t i = 0; i < data->size(); ++i) ++histogram[data->label(i)];
    CHECK(histogram == std::vector<std::int64_t>(10, per_class));
    CHECK(data->class_names()[data->label(0)] == "Ankle boot");
    if (split == Split::kTest) continue;
    double sum = 0;
    double squares = 0;
    Batch batch;
    for (std::int64_t i = 0; i < data->size(); ++i) {
      batch.clear();
      data->append(i, {}, batch);
      for (const float value : batch.values) {
        sum += value;
        squares += static_cast<double>(value) * value;
      }
    }
    const double count = static_cast<double>(data->size()) * 28 * 28;
    CHECK_THAT(sum / count, WithinAbs(0.0, 1e-3));
    CHECK_THAT(squares / count, WithinAbs(1.0, 1e-3));
  }
}
