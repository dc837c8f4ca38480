// The fuzz target as an ordinary test; under a name of its own, for there are others in the
// program.
#define LLVMFuzzerTestOneInput fuzz_byte_bpe
#include "tests/fuzz/byte_bpe_fuzz.cc"

#include "core/files.h"
#include "tests/fuzz/mutate.h"
#include "tests/support/catch.h"

TEST_CASE("byte-level BPE survives mutated vocabularies and texts", "[bpe][fuzz]") {
  const auto files = learnt_bpe().files(64);
  fuzz(LLVMFuzzerTestOneInput,
       {
           std::string("j").append(
               vcas::read_file(VCAS_SOURCE_DIR "/tests/golden/byte_bpe_tokenizer.json")),
           std::string("j").append(files.at("tokenizer.json")),
           std::string("m").append(files.at("merges.txt")),
           "mt h\r\nth e\r\n",
           "tthe lower's  caf\u00e9\n\n \u91ce<|endoftext|>\u200d\U0001f44d\u3000 12\u0661",
           "t  'll <|endoftext|\xed\xa0\x80 \xc0\xaf \xf5",
       },
       "[]{}#\",:\n\r 0123456789abthelowr'<|>\xc3\xa9\xc4\xa0\xe9", 3000);
  std::filesystem::remove_all(fuzz_path("byte_bpe"));
}
