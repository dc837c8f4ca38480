#include "optim/methods/item_threshold.h"

#include <algorithm>
#include <cmath>

#include "optim/methods/variance_curves.h"

namespace vcas {

double ItemThreshold::kept(const std::vector<double>& scores, double target) const {
  if (value_ == 0) return target;
  double sum = 0;
  for (const double score : scores) sum += std::isfinite(score) ? std::min(1.0, score / value_) : 1;
  return sum;
}

double ItemThreshold::whole(double sum) { return std::max(1.0, std::round(sum)); }

// A step of Newton's method on log t, damped: the slope of the sum is that of the P_i below 1.
void ItemThreshold::follow(const std::vector<double>& scores, double target) {
  constexpr double kGain = 0.05, kLeastSlope = 0.25;  // the slope as a share of the target
  if (!std::ranges::all_of(scores, [](double score) { return std::isfinite(score); })) return;
  if (value_ == 0) {
    const double level = capped_level(scores, std::vector<double>(scores.size(), 1.0), target);
    if (std::isfinite(level) && level > 0) value_ = 1 / level;
    return;
  }
  double sum = 0, below = 0;
  for (const double score : scores) {
    const double p = std::min(1.0, score / value_);
    sum += p;
    if (p < 1) below += p;
  }
  const double slope = std::max(below, kLeastSlope * target);
  value_ *= std::exp(kGain * std::clamp((sum - target) / slope, -1.0, 1.0));
}

}  // namespace vcas
