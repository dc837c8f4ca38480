// layers/layer_check.h as a test of this tree.
#pragma once

#include "layers/layer_check.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"

namespace vcas {

// On each of the devices (`device` does not count). Fails the running test for any fault.
inline void check_layer(LayerCase test, const std::vector<std::string>& devices = test_devices()) {
  for (const std::string& device : devices) {
    test.device = device;
    for (const std::string& fault : layer_faults(test))
      FAIL_CHECK(test.kind << " on " << device << ": " << fault);
    SUCCEED();
  }
}

}  // namespace vcas
