// The devices that a test of all backends runs on.
#pragma once

#include <string>
#include <vector>

#include "kernels/ops.h"

namespace vcas {

// cpu, emu, and cuda where there is a GPU.
inline std::vector<std::string> test_devices() {
  std::vector<std::string> devices = {"cpu", "emu"};
  if (make_ops("auto")->name() == "cuda") devices.push_back("cuda");
  return devices;
}

}  // namespace vcas
