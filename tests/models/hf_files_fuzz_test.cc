// The fuzz target as an ordinary test; under a name of its own, for there are others in the
// program.
#define LLVMFuzzerTestOneInput fuzz_hf_files
#include "tests/fuzz/hf_files_fuzz.cc"

#include "tests/fuzz/mutate.h"

TEST_CASE("preprocessor_config.json and indices of weights survive mutation", "[hf][fuzz]") {
  fuzz(fuzz_hf_files,
       {R"(p{"image_processor_type":"ViTImageProcessor","do_resize":true,"do_rescale":true,)"
        R"("rescale_factor":0.00392156862745098,"do_normalize":true,"resample":3,)"
        R"("size":{"height":8,"width":8},"image_mean":[0.5,0.5,0.5],"image_std":[0.5,0.5,0.5]})",
        R"(p{"size":{"shortest_edge":9},"crop_size":8,"do_center_crop":true,"resample":2})",
        R"(i{"metadata":{"total_size":8},"weight_map":{"a":"model-1.safetensors","b":"c"}})"},
       "0123456789{}[]\",:-.eE truefalsn\\u00ff/", 2000);
}
