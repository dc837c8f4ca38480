// Sizes of convolutions, as tests list them.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/ops/patches.h"

namespace vcas {

struct PatchCase {
  std::int64_t items, channels, out;
  Patches patches;
};

inline std::string text(const PatchCase& of) {
  const Patches& p = of.patches;
  return std::to_string(of.items) + " items of " + std::to_string(p.height) + " x " +
         std::to_string(p.width) + " x " + std::to_string(of.channels) + ", kernel " +
         std::to_string(p.kernel) + ", stride " + std::to_string(p.stride);
}

}  // namespace vcas
