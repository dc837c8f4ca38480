// The fuzz target as an ordinary test.
#include "tests/fuzz/safetensors_fuzz.cc"

#include "core/files.h"
#include "tests/fuzz/mutate.h"
#include "tests/support/catch.h"

namespace {

std::string with_length(const std::string& header, const std::string& data = {}) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

}  // namespace

TEST_CASE("safetensors parser survives mutated files", "[safetensors][fuzz]") {
  fuzz(LLVMFuzzerTestOneInput,
       {
           vcas::read_file(VCAS_SOURCE_DIR "/tests/golden/original.safetensors"),
           with_length("{}"),
           with_length(R"({"__metadata__":{"format":"pt"}})"),
           with_length(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "12345678"),
           with_length(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                       R"("b":{"dtype":"F16","shape":[],"data_offsets":[0,2]}})",
                       "12"),
           with_length("{\"a\":[[[[[[[["),
       },
       "0123456789{}[]\",:-.eE \\u00ff", 2000);
}
