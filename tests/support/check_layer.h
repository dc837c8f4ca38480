// layers/layer_check.h as a test of this tree.
#pragma once

#include "layers/layer_check.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"

namespace vcas {

// On each of the devices (`device` does not count). Fails the running test for any fault.
void check_layer(const LayerCase& test, const std::vector<std::string>& devices = test_devices());

}  // namespace vcas
