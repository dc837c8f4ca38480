// Fuzzes the reading of images: whatever the bytes, it gives all pixels or throws kBadData.
// Where the build lacks the format it throws kUnavailable.
#include "data/image_file.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::filesystem::path path = fuzz_path("image");
  write_fuzz_file(path, data, size);
  fuzz_read(
      [] {
        const vcas::DecodedImage image = vcas::read_image(path);
        if (image.height < 1 || image.width < 1 ||
            std::ssize(image.pixels) != 3 * image.height * image.width)
          std::abort();
      },
      {vcas::ExitCode::kBadData, vcas::ExitCode::kUnavailable});
  std::filesystem::remove(path);
  return 0;
}
