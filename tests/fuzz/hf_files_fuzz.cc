// Whatever the bytes, a preprocessor_config.json or an index of weights is refused or is read.
// The first byte chooses: 'p' or an index.
#include "models/hf_config.h"
#include "models/hf_files.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static const std::filesystem::path folder = fuzz_path("hf-files");
  std::filesystem::create_directories(folder);
  const bool images = data[0] == 'p';
  const std::filesystem::path file =
      folder / (images ? vcas::kHfImageProcessorFile : "model.safetensors.index.json");
  write_fuzz_file(file, data + 1, size - 1);
  fuzz_read(
      [&] {
        if (!images) return void(vcas::HfWeights(file).tensors());
        if (const auto processor = vcas::read_hf_image_processor(folder))
          vcas::image_processor_text(*processor, {3, 8, 8});
      },
      {vcas::ExitCode::kBadData, vcas::ExitCode::kBadConfig, vcas::ExitCode::kNoInput});
  std::filesystem::remove_all(folder);
  return 0;
}
