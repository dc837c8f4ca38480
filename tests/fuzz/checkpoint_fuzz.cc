// Whatever the bytes, a manifest makes its checkpoint a whole one or one that is passed over.
// A state of the trainer is refused, or trains on. The first byte chooses: 'm' or a state.
#include "core/read_json.h"
#include "optim/checkpoint.h"
#include "tests/fuzz/fuzz_file.h"
#include "tests/optim/trainer_fixture.h"

namespace {

void try_state(const std::filesystem::path& file) {
  vcas::TrainerOptions options = vcas::TrainerFixture::defaults();
  options.batch = 4;
  static vcas::TrainerFixture fixture(options);
  nlohmann::json state;
  try {
    state = vcas::read_json(file);
    fixture.trainer->restore(state);
  } catch (const nlohmann::json::exception&) {
    return;  // the caller, which has read the rest of it too, reports it
  }
  fixture.run(fixture.trainer->steps() + 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static const std::filesystem::path run = fuzz_path("checkpoint");
  const std::filesystem::path folder = vcas::checkpoint_folder(run, 3);
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "model.safetensors") << "weights";
  if (data[0] == 'm') {
    write_fuzz_file(folder / "manifest.json", data + 1, size - 1);
    const vcas::NewestCheckpoint newest = vcas::find_newest_checkpoint(run);
    if (newest.step.has_value() == !newest.ignored.empty()) std::abort();
  } else {
    write_fuzz_file(folder / "trainer_state.json", data + 1, size - 1);
    fuzz_read([&] { try_state(folder / "trainer_state.json"); },
              {vcas::ExitCode::kBadData, vcas::ExitCode::kBadConfig});
  }
  std::filesystem::remove_all(run);
  return 0;
}
