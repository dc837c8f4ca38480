// The fuzz target as an ordinary test; under a name of its own, for there are others in the
// program.
#define LLVMFuzzerTestOneInput fuzz_config
#include "tests/fuzz/config_fuzz.cc"

#include "tests/fuzz/mutate.h"

TEST_CASE("configurations survive mutation", "[config][fuzz]") {
  fuzz(fuzz_config,
       {R"(f{"device":"cpu", // why
"model":{"type":"vit","width":64,"heads":4},
"train":{"learning_rate":3e-4,"epochs":2,"seed":18446744073709551615,"sizes":[1,2],
"weights":[0.5],"clip_norm":null,"note":"\u00e9","x-own":{"a":[]},"data":{"columns":["a"]}}})",
        "otrain.learning_rate=3e-5", "otrain.data.columns=[\"a\",\"b\"]", "omodel.heads=12"},
       "0123456789{}[]\",:-.eE null/*=\\u00ff", 2000);
}
