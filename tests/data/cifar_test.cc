#include "data/cifar.h"

#include "data/data_kind.h"
#include "tests/data/data_files.h"

using namespace vcas;
using Catch::Matchers::WithinAbs;

namespace {

// Red is `red`, green `red` + 1, blue `red` + 2; the first pixel of each is 255.
Bytes record(const Bytes& labels, std::uint8_t red) {
  Bytes bytes = labels;
  for (int channel = 0; channel < 3; ++channel) {
    bytes.push_back(255);
    bytes.insert(bytes.end(), 1023, static_cast<std::uint8_t>(red + channel));
  }
  return bytes;
}

}  // namespace

TEST_CASE("CIFAR-10 takes the training files that are there, plain or gzip", "[cifar]") {
  const DataFolder folder;
  folder.write("data_batch_2.bin", record({3}, 10) + record({9}, 20));
  folder.write("data_batch_5.bin.gz", gzip(record({0}, 30)));
  folder.write("test_batch.bin", record({7}, 40));
  const auto data =
      load_cifar({.folder = folder.path(), .transform = {.mean = {0, 0, 1}, .std = {1, 1, 0.5f}}});
  REQUIRE(data->size() == 3);
  CHECK(data->item_shape() == std::vector<std::int64_t>{3, 32, 32});
  CHECK(data->classes() == 10);
  CHECK(data->class_names()[4] == "4");
  CHECK(data->label(0) == 3);
  CHECK(data->label(1) == 9);
  CHECK(data->label(2) == 0);
  Batch batch;
  data->append(2, {}, batch);
  REQUIRE(batch.values.size() == 3072);
  CHECK_THAT(batch.values[0], WithinAbs(1.0, 1e-6));
  CHECK_THAT(batch.values[1], WithinAbs(30 / 255.0, 1e-6));
  CHECK_THAT(batch.values[1024 + 1], WithinAbs(31 / 255.0, 1e-6));
  CHECK_THAT(batch.values[2048], WithinAbs(0.0, 1e-6));
  CHECK_THAT(batch.values[3071], WithinAbs((32 / 255.0 - 1) / 0.5, 1e-6));

  REQUIRE(data->sources().size() == 2);
  CHECK(data->sources()[1].path == folder.path() / "data_batch_5.bin.gz");
  CHECK(data->sources()[0].hash != data->sources()[1].hash);

  CHECK(load_cifar({.folder = folder.path(), .split = Split::kTest})->label(0) == 7);
  CHECK(load_cifar({.folder = folder.path(), .files = {"data_batch_5.bin"}})->size() == 1);

  const auto first_value = [](const OpenedData& opened) {
    Batch first;
    opened.items->append(0, {}, first);
    return first.values[0];
  };
  const std::unique_ptr<DataKind> kind = part_kinds<DataKind>().at("cifar10").make();
  const DataRequest plain{.folder = folder.path(),
                          .transform = {.mean = {0, 0, 0}, .std = {1, 1, 1}}};
  CHECK(first_value(kind->open(plain)) == 1);
  CHECK(first_value(
            kind->open_unlabelled(plain, {folder.path() / "test_batch.bin"}, {3, 32, 32})) == 1);
  CHECK(kind->open({.folder = folder.path()}).note ==
        "3 of the 50000 training images: files are missing in " + folder.path().string());
  CHECK(kind->open({.folder = folder.path(), .split = Split::kTest}).note.empty());
}

TEST_CASE("CIFAR-100 has its fine labels", "[cifar]") {
  const DataFolder folder;
  folder.write("train.bin", record({19, 99}, 1));
  std::string names;
  for (int i = 0; i < 100; ++i) names += "class " + std::to_string(i) + "\n";
  folder.write("fine_label_names.txt", Bytes(names.begin(), names.end()));
  const auto fine = load_cifar({.folder = folder.path(), .kind = CifarKind::kCifar100});
  CHECK(fine->classes() == 100);
  CHECK(fine->class_names()[fine->label(0)] == "class 99");
}

TEST_CASE("bad CIFAR files are refused with what was expected and found", "[cifar]") {
  const DataFolder folder;
  const auto load = [&] { load_cifar({.folder = folder.path()}); };
  const auto load_100 = [&] {
    load_cifar({.folder = folder.path(), .kind = CifarKind::kCifar100});
  };
  check_error(load, ExitCode::kNoInput,
              folder.path().string() + ": none of data_batch_1.bin to data_batch_5.bin");
  CHECK_THAT(error_of(load).hint(), ContainsSubstring("unpack cifar-10-binary.tar.gz"));
  check_error(load_100, ExitCode::kNoInput,
              (folder.path() / "train.bin").string() + ": no such file, nor with .gz");
  check_error([&] { load_cifar({.folder = folder.path(), .files = {"data_batch_9.bin"}}); },
              ExitCode::kNoInput, (folder.path() / "data_batch_9.bin").string());

  folder.write("data_batch_1.bin", record({1}, 0) + Bytes(7));
  check_error(load, ExitCode::kBadData,
              "data_batch_1.bin: 3080 bytes, expected a multiple of 3073: 1 records and 7 bytes");
  folder.write("data_batch_1.bin", {});
  check_error(load, ExitCode::kBadData, "data_batch_1.bin: 0 bytes");
  folder.write("data_batch_1.bin", record({1}, 0) + record({10}, 0));
  check_error(load, ExitCode::kBadData, "data_batch_1.bin: record 1 has label 10, expected 0 to 9");
  folder.write("train.bin", record({1, 100}, 0));
  check_error(load_100, ExitCode::kBadData, "train.bin: record 0 has label 100, expected 0 to 99");
  folder.write("data_batch_1.bin", record({1}, 0));
  folder.write("batches.meta.txt", {'a', '\n', '\n', 'b', '\n'});
  check_error(load, ExitCode::kBadData, "batches.meta.txt: 2 class names, expected 10");
}
