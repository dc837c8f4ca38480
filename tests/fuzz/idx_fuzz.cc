// Whatever the bytes, an IDX file is kBadData or has as many values as its sizes say.
// The first byte chooses the dimensions.
#include "data/idx.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static const std::filesystem::path path = fuzz_path("idx");
  write_fuzz_file(path, data + 1, size - 1);
  fuzz_read(
      [&] {
        const vcas::IdxArray array = vcas::read_idx(path, data[0] % 2 == 0 ? 1 : 3);
        std::int64_t count = 1;
        for (const std::int64_t extent : array.sizes) count *= extent;
        if (count != std::ssize(array.values)) std::abort();
      },
      {vcas::ExitCode::kBadData});
  std::filesystem::remove(path);
  return 0;
}
