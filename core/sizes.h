// Sizes that settings and files ask for, looked at before memory is taken.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <span>
#include <string>

namespace vcas {

// The most of one array: above any memory.
// The sum over all values of a graph still fits into 64 bits.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 44;

// The values of a tensor of this shape: files and plans have bounded it before.
inline std::int64_t product_of(std::span<const std::int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

// The product of sizes, none negative. More than kMostBytes: Error(kOutOfMemory), naming `what`.
std::int64_t checked_product(std::initializer_list<std::int64_t> sizes, const std::string& what);

// Throws Error(kOutOfMemory), naming `what`, where this process cannot have so many bytes.
void check_room(std::int64_t bytes, const std::string& what);

}  // namespace vcas
