// The fuzz target as an ordinary test.
#include "tests/fuzz/hf_config_fuzz.cc"

#include "core/files.h"
#include "tests/fuzz/mutate.h"

TEST_CASE("config.json survives mutation", "[hf][fuzz]") {
  std::vector<std::string> corpus = {"{\"model_type\":\"bert\",\"a\":[[[[[[[["};
  for (const auto& folder : std::filesystem::directory_iterator(VCAS_SOURCE_DIR "/tests/golden/hf"))
    corpus.push_back(vcas::read_file(folder.path() / "config.json"));
  fuzz(LLVMFuzzerTestOneInput, corpus, "0123456789{}[]\",:-.eE truefalsn\\u00ff", 2000);
}
