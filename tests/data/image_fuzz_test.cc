// The fuzz target as an ordinary test; under a name of its own, for there are others in the
// program.
#define LLVMFuzzerTestOneInput fuzz_image
#include "tests/fuzz/image_fuzz.cc"

#include <iterator>

#include "tests/fuzz/mutate.h"
#include "tests/support/catch.h"

TEST_CASE("the image reader survives mutated files", "[images][fuzz]") {
  std::vector<std::string> corpus;
  for (const char* name : {"red.jpg", "colours.jpg", "grey16.png"}) {
    std::ifstream file(std::string(VCAS_SOURCE_DIR) + "/tests/golden/images/" + name,
                       std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    REQUIRE(corpus.back().size() > 100);
  }
  fuzz(fuzz_image, corpus, std::string("\xFF\xD8\xC0\xC4\xDA\xDB\xD9\0\1PNGIHDATEx", 19), 2000);
}
