// layers/layer_check.h as a test of this tree.
#pragma once

#include "layers/layer_check.h"
#include "tests/support/catch.h"

namespace vcas {

// On every device that is here (`device` does not count). Fails the running test for any fault.
void check_layer(const LayerCase& test);

}  // namespace vcas
