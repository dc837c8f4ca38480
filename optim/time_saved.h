// How much time sampling saves, from exact steps of the same run.
#pragma once

#include <optional>
#include <vector>

namespace vcas {

// A value and the ends of its 95 % interval.
struct Estimate {
  double middle = 0, low = 0, high = 0;
};

// The median of what `ascending` is a sample of. Its interval is made of order statistics, so it
// holds whatever the distribution is. Empty for less than 6 values, which have no such interval.
// A median of ratios times a sum is off by the skew of the ratios, but no stall moves it.
std::optional<Estimate> estimate_median(const std::vector<double>& ascending);

// Whether the estimate of a saved share can be told: it is off by less than itself, so that its
// sign is known, and by at most 3 points.
bool is_known(const std::optional<Estimate>& saved);

}  // namespace vcas
