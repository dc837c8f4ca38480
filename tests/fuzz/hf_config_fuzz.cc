// Whatever the bytes, a config.json is refused or describes a model that can be written again.
#include "models/hf_config.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::filesystem::path path = fuzz_path("hf-config");
  write_fuzz_file(path, data, size);
  fuzz_read(
      [] {
        const vcas::HfModel model = vcas::read_hf_config(path);
        const std::int64_t classes = model.labels.empty() ? 2 : std::ssize(model.labels);
        if (vcas::hf_obstacle(model.options, model.image_shape).empty() &&
            vcas::hf_config_text(model, classes).empty())
          std::abort();
      },
      {vcas::ExitCode::kBadData, vcas::ExitCode::kBadConfig});
  std::filesystem::remove(path);
  return 0;
}
