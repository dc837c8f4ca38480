// How much time sampling saves, from exact steps of the same run.
#pragma once

#include <optional>
#include <vector>

namespace vcas {

// A value and the ends of its 95 % interval.
struct Estimate {
  double middle = 0, low = 0, high = 0;
};

// The median of the distribution that `ascending` is a sample of.
// Its interval is made of order statistics: it has at least 95 % for any distribution.
// Fewer than 6 values have no such interval: empty.
// A median of ratios times a sum is off by the skew of the ratios, but no stall moves it.
std::optional<Estimate> estimate_median(const std::vector<double>& ascending);

// Whether a saved share can be told: it is off by at most 3 points, and its sign is known.
bool is_known(const std::optional<Estimate>& saved);

}  // namespace vcas
