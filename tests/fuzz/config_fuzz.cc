// Whatever the bytes, a configuration is kBadConfig, or prints as one that reads to the same.
// The first byte chooses a file or an override.
#include "tests/core/config_fixture.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  vcas::ConfigSources sources;
  if (data[0] == 'f')
    sources.documents = {{"fuzz.json", text}};
  else
    sources.overrides = {text};
  fuzz_read(
      [&] {
        vcas::RunConfig config, again;
        vcas::read_config(config, sources);
        const std::string printed = vcas::print_config(config, {}, vcas::PrintMode::kPlain);
        vcas::read_config(again, {.documents = {{"printed.json", printed}}});
        if (!vcas::config_changes(config, again).empty()) std::abort();
      },
      {vcas::ExitCode::kBadConfig, vcas::ExitCode::kUsage});
  return 0;
}
