// The functions of kernels/device/ptx.cuh against tests/golden/ptx.txt.
#include <bit>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>

#if VCAS_CUDA
#include "kernels/cuda/context.h"
#endif
#include "tests/kernels/ptx_probe.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"

using namespace vcas;

TEST_CASE("PTX instructions do what is written down", "[ptx]") {
  std::map<std::string, std::map<std::string, std::vector<float>>> golden;
  std::ifstream file(VCAS_SOURCE_DIR "/tests/golden/ptx.txt");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, side;
    words >> name >> side >> std::hex;
    for (std::uint32_t word = 0; words >> word;)
      golden[name][side].push_back(std::bit_cast<float>(word));
  }
  REQUIRE(golden.size() == 12);
  const auto bits = [](const std::vector<float>& values) {
    std::vector<std::uint32_t> words;
    for (const float value : values) words.push_back(std::bit_cast<std::uint32_t>(value));
    return words;
  };
  for (const std::string& device : test_devices())
    for (auto& [name, side] : golden) {
      INFO(device << ": " << name);
      const std::vector<float>& want = side["out"];
      REQUIRE(want.size() >= 32);
      if (device == "emu") CHECK(bits(emu::ptx_probe(name, side["in"], want.size())) == bits(want));
#if VCAS_CUDA
      const bool of_sm90a = name.starts_with("wgmma") || name == "mbarrier";
      if (device == "cuda" && (!of_sm90a || cuda::Context().warpgroup_products()))
        CHECK(bits(cuda::ptx_probe(name, side["in"], want.size())) == bits(want));
#endif
    }
}
