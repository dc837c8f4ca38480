#include "tests/support/check_layer.h"

namespace vcas {

void check_layer(const LayerCase& test, const std::vector<std::string>& devices) {
  for (const std::string& device : devices) {
    LayerCase on_device = test;
    on_device.device = device;
    const std::vector<std::string> faults = layer_faults(on_device);
    for (const std::string& fault : faults) {
      UNSCOPED_INFO(test.kind << " on " << device << ": " << fault);
    }
    CHECK(faults.empty());
  }
}

}  // namespace vcas
