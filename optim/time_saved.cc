#include "optim/time_saved.h"

#include <algorithm>
#include <cmath>

namespace vcas {

std::optional<Estimate> estimate_median(const std::vector<double>& ascending) {
  constexpr std::size_t kFewest = 6;
  constexpr double kDeviations = 1.96;
  const std::size_t n = ascending.size();
  if (n < kFewest) return std::nullopt;
  // How many values lie below the median is binomial, of deviation sqrt(n) / 2.
  const auto count = static_cast<double>(n);
  const auto below = static_cast<std::size_t>((count - kDeviations * std::sqrt(count)) / 2);
  return Estimate{.middle = (ascending[(n - 1) / 2] + ascending[n / 2]) / 2,
                  .low = ascending[below],
                  .high = ascending[n - 1 - below]};
}

bool is_known(const std::optional<Estimate>& saved) {
  constexpr double kWidest = 0.03;
  if (!saved) return false;
  const double off = std::max(saved->high - saved->middle, saved->middle - saved->low);
  return off <= kWidest && off < std::abs(saved->middle);
}

}  // namespace vcas
