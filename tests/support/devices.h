// The devices that a test of all backends runs on.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/ops.h"

namespace vcas {

// cpu, emu, and cuda where there is a GPU; $VCAS_TEST_DEVICE alone where it is set: what watches
// one device need not wait for the others.
inline std::vector<std::string> test_devices() {
  if (const char* only = std::getenv("VCAS_TEST_DEVICE")) return {only};
  std::vector<std::string> devices = {"cpu", "emu"};
  if (make_ops("auto")->name() == "cuda") devices.push_back("cuda");
  return devices;
}

// Devices whose memory the host can read: for layers of a test that read it.
inline std::vector<std::string> host_devices() {
  std::vector<std::string> devices = test_devices();
  std::erase(devices, "cuda");
  return devices;
}

}  // namespace vcas
