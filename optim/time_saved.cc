#include "optim/time_saved.h"

#include <algorithm>
#include <cmath>

namespace vcas {

std::optional<Estimate> estimate_median(const std::vector<double>& ascending) {
  constexpr std::size_t kFewest = 6;
  constexpr double kOutside = 0.05;
  const std::size_t n = ascending.size();
  if (n < kFewest) return std::nullopt;
  // How many values lie below the median is binomial: `tail` is the chance of at most `below`.
  std::size_t below = 0;
  double log_term = -std::log(2) * static_cast<double>(n), tail = std::exp(log_term);
  while (true) {
    log_term += std::log(static_cast<double>(n - below) / static_cast<double>(below + 1));
    tail += std::exp(log_term);
    if (2 * tail > kOutside) break;
    ++below;
  }
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
