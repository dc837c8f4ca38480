// Whatever the bytes, reading a compressed file is kBadData, or gives no more than was asked for.
// The first byte chooses the ending of the name. kUnavailable: the build lacks the format.
#include "core/compressed_file.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  constexpr const char* kEndings[] = {"", ".gz", ".xz", ".zst"};
  const std::filesystem::path path = fuzz_path("compressed").string() + kEndings[data[0] % 4];
  write_fuzz_file(path, data + 1, size - 1);
  constexpr std::size_t kMost = 1 << 16;
  fuzz_read(
      [&] {
        if (vcas::read_decompressed(path, kMost).size() > kMost) std::abort();
      },
      {vcas::ExitCode::kBadData, vcas::ExitCode::kUnavailable});
  std::filesystem::remove(path);
  return 0;
}
