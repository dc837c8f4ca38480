// Whatever the bytes, a file of tokens in the cache is kBadData or as long as its end says.
#include "data/token_stream.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::filesystem::path path = fuzz_path("tokens");
  write_fuzz_file(path, data, size);
  fuzz_read(
      [&] {
        if (vcas::TokenStream(path).tokens().size_bytes() >= size) std::abort();
      },
      {vcas::ExitCode::kBadData});
  std::filesystem::remove(path);
  return 0;
}
