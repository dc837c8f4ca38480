// Numbers that a device has copied to the host.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "core/dtype.h"

namespace vcas {

// Sets `to` to the numbers of `dtype`, f32 or f64, that lie at `from`, aligned or not.
template <class T>
void read_numbers(const void* from, DType dtype, std::span<T> to) {
  const auto read = [&]<class Stored>(Stored value) {
    for (std::size_t i = 0; i < to.size(); ++i) {
      std::memcpy(&value, static_cast<const std::byte*>(from) + i * sizeof value, sizeof value);
      to[i] = static_cast<T>(value);
    }
  };
  dtype == DType::kF64 ? read(double{}) : read(float{});
}

}  // namespace vcas
