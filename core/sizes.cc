#include "core/sizes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/hardware.h"

namespace vcas {

std::int64_t checked_product(std::initializer_list<std::int64_t> sizes, const std::string& what) {
  std::int64_t product = 1;
  for (const std::int64_t size : sizes)
    if (__builtin_mul_overflow(product, size, &product) || product > kMostBytes)
      throw Error(ExitCode::kOutOfMemory,
                  fmt::format("{}: {} bytes are more than any memory", what,
                              fmt::join(sizes.begin(), sizes.end(), " x ")),
                  "look for a setting with some zeros too many");
  return product;
}

void check_room(std::int64_t bytes, const std::string& what) {
  constexpr double kGiB = 1 << 30;
  const std::int64_t free = available_memory_bytes();
  if (bytes > free)
    throw Error(ExitCode::kOutOfMemory,
                fmt::format("{} needs {:.1f} GiB, and {:.1f} GiB are free", what,
                            static_cast<double>(bytes) / kGiB, static_cast<double>(free) / kGiB),
                "use fewer or smaller items");
}

}  // namespace vcas
