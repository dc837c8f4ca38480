// Whatever the bytes, reading an image either throws kBadData (kUnavailable where the build lacks
// the format) or gives all its pixels. Standalone: clang++ -std=c++20 -g
//   -fsanitize=fuzzer,address,undefined -DVCAS_JPEG=1 -DVCAS_PNG=1 -I. tests/fuzz/image_fuzz.cc
//   data/image_file.cc core/{files,error}.cc -lfmt -lturbojpeg -lspng
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "core/error.h"
#include "data/image_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("vcas-image-fuzz-" + std::to_string(getpid()));
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    const vcas::DecodedImage image = vcas::read_image(path);
    if (image.height < 1 || image.width < 1 ||
        std::ssize(image.pixels) != 3 * image.height * image.width)
      std::abort();
  } catch (const vcas::Error& error) {
    if (error.code() != vcas::ExitCode::kBadData && error.code() != vcas::ExitCode::kUnavailable)
      std::abort();
  }
  std::filesystem::remove(path);
  return 0;
}
