// Whatever the bytes, a data.noun is kBadData or gives synsets whose relations lie within the list.
#include "data/wordnet.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::filesystem::path folder = fuzz_path("wordnet");
  std::filesystem::create_directory(folder);
  for (const char* name : {"data.noun", "data.verb", "data.adj", "data.adv"})
    std::ofstream(folder / name).close();
  write_fuzz_file(folder / "data.noun", data, size);
  fuzz_read(
      [] {
        const std::vector<vcas::Synset> synsets = vcas::read_wordnet(folder);
        for (const vcas::Synset& synset : synsets)
          for (const std::int64_t hypernym : synset.hypernyms)
            if (hypernym < 0 || hypernym >= std::ssize(synsets)) std::abort();
        for (const vcas::Split split : {vcas::Split::kTrain, vcas::Split::kTest})
          vcas::wordnet_rows(synsets, vcas::WordNetTask::kIsA, split);
      },
      {vcas::ExitCode::kBadData});
  std::filesystem::remove_all(folder);
  return 0;
}
