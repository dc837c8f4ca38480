// The fuzz target as an ordinary test: a small corpus and fixed random mutations of it.
#include "tests/fuzz/safetensors_fuzz.cc"

#include <random>

#include "tests/support/catch.h"

namespace {

std::string with_length(const std::string& header, const std::string& data = {}) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

void run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
}

}  // namespace

TEST_CASE("safetensors parser survives mutated files", "[safetensors][fuzz]") {
  const std::string corpus[] = {
      vcas::read_file(VCAS_SOURCE_DIR "/tests/golden/original.safetensors"),
      with_length("{}"),
      with_length(R"({"__metadata__":{"format":"pt"}})"),
      with_length(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "12345678"),
      with_length(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                  R"("b":{"dtype":"F16","shape":[],"data_offsets":[0,2]}})",
                  "12"),
      with_length("{\"a\":[[[[[[[["),
  };
  for (const std::string& seed : corpus) run(seed);

  const std::string tokens = "0123456789{}[]\",:-.eE \\u00ff";
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string input = corpus[random() % std::size(corpus)];
    for (unsigned change = 0; change <= random() % 4 && !input.empty(); ++change) {
      const std::size_t at = random() % input.size();
      switch (random() % 4) {
        case 0:
          input[at] = static_cast<char>(random());
          break;
        case 1:
          input[at] = tokens[random() % tokens.size()];
          break;
        case 2:
          input.erase(at, 1 + random() % 8);
          break;
        default:
          input.insert(at, input.substr(random() % input.size(), random() % 16));
      }
    }
    run(input);
  }
  SUCCEED();
}
