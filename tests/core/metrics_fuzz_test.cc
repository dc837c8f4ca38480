// The fuzz target as an ordinary test; under a name of its own, for there is another in the
// program.
#define LLVMFuzzerTestOneInput fuzz_metrics
#include "tests/fuzz/metrics_fuzz.cc"

#include "tests/fuzz/mutate.h"

TEST_CASE("metrics.jsonl survives mutation", "[metrics][fuzz]") {
  const std::string lines = R"({"event":"start","step":0,"time":0.0,"config":{"seed":1}})"
                            "\n"
                            R"({"event":"train","step":2,"time":0.1,"loss":null})"
                            "\n"
                            R"({"event":"eval","step":4,"time":0.2,"accuracy":1e-1})"
                            "\n";
  fuzz(fuzz_metrics, {lines, lines.substr(0, lines.size() - 9), ""},
       "0123456789{}[]\",:-.eE \n\\u00ff", 2000);
}
