// The fuzz target as an ordinary test.
#include "tests/fuzz/checkpoint_fuzz.cc"

#include "core/files.h"
#include "tests/fuzz/mutate.h"

TEST_CASE("the JSON of a checkpoint survives mutation", "[checkpoint][fuzz]") {
  vcas::TrainerFixture fixture(vcas::TrainerFixture::defaults());
  do fixture.run(fixture.trainer->steps() + 1);
  while (!fixture.trainer->at_rest());
  const std::filesystem::path folder = fuzz_path("manifest");
  std::filesystem::create_directory(folder);
  std::ofstream(folder / "model.safetensors") << "weights";
  vcas::write_manifest(folder);
  const std::string manifest = vcas::read_file(folder / "manifest.json");
  std::filesystem::remove_all(folder);
  fuzz(LLVMFuzzerTestOneInput, {"m" + manifest, "s" + fixture.trainer->state().dump()},
       "0123456789{}[]\",:-.eE null\\u00ff", 500);
}
