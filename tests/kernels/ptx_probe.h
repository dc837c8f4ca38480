// One warp, or warpgroup, that runs functions of kernels/device/ptx.cuh, on the emulator and on a
// GPU.
#pragma once

#include <string>
#include <vector>

// What `name` of tests/golden/ptx.txt makes of `in`; `outputs` words.
namespace vcas::emu {
std::vector<float> ptx_probe(const std::string& name, const std::vector<float>& in,
                             std::size_t outputs);
}
namespace vcas::cuda {
std::vector<float> ptx_probe(const std::string& name, const std::vector<float>& in,
                             std::size_t outputs);
}
