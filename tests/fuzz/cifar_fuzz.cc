// Whatever the bytes, a file of CIFAR is kBadData or has an image and a label for each record.
// The first byte chooses the kind. The others stand for a record's labels, and are repeated.
#include "data/cifar.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  static const std::filesystem::path folder = fuzz_path("cifar");
  std::filesystem::create_directories(folder);
  constexpr std::size_t kRecord = 3074;  // two labels and 32 x 32 x 3 values
  std::string bytes;
  while (bytes.size() < kRecord) bytes.append(reinterpret_cast<const char*>(data + 1), size - 1);
  const bool fine = data[0] % 2 == 1;
  bytes.resize(kRecord - (fine ? 0 : 1) + data[0] / 64);
  std::ofstream(folder / "some.bin", std::ios::binary) << bytes;
  fuzz_read(
      [&] {
        const std::unique_ptr<vcas::Dataset> items =
            vcas::load_cifar({.folder = folder,
                              .kind = fine ? vcas::CifarKind::kCifar100 : vcas::CifarKind::kCifar10,
                              .files = {"some.bin"}});
        if (items->size() != 1 || items->label(0) >= items->classes()) std::abort();
      },
      {vcas::ExitCode::kBadData});
  std::filesystem::remove_all(folder);
  return 0;
}
