// Checks the layer against finite differences, and all else that a layer promises.
#include <cstdio>

#include "vcas/layers/layer_check.h"

int main() {
  const std::vector<std::string> faults = vcas::layer_faults(
      {.kind = "column_gain", .config = {{"start", 0.5}}, .inputs = {{.width = 24}}});
  for (const std::string& fault : faults) std::printf("column_gain: %s\n", fault.c_str());
  std::printf("column_gain: %zu faults\n", faults.size());
  return !faults.empty();
}
