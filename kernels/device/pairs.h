// What a context sorts.
#pragma once

#include <cstdint>

namespace vcas {

// As many of each, in device memory; keys are not negative.
struct Pairs {
  std::int32_t* key;
  std::int32_t* value;
};

}  // namespace vcas
