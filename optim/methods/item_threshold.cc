#include "optim/methods/item_threshold.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "optim/methods/variance_curves.h"

namespace vcas {

double ItemThreshold::kept(const std::vector<double>& scores, double target,
                           const std::vector<double>& weights) const {
  if (value_ == 0) return target;
  double sum = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const double p = std::isfinite(scores[i]) ? std::min(1.0, scores[i] / value_) : 1;
    sum += weights.empty() ? p : weights[i] * p;
  }
  return sum;
}

double ItemThreshold::whole(double sum) { return std::max(1.0, std::round(sum)); }

// t goes a part of the way, in logarithms, to the threshold that would keep `target` of this batch.
// The part is the squared gain of Trigg and Leach (1967).
// Errors of one sign come from a trend, which t follows at once.
// Errors of both signs come from batches that differ, which t does not follow.
void ItemThreshold::follow(const std::vector<double>& scores, double target,
                           const std::vector<double>& weights) {
  constexpr double kSmoothing = 0.1, kLeastGain = 0.05;
  if (!std::ranges::all_of(scores, [](double score) { return std::isfinite(score); })) return;
  const double level = capped_level(scores, weights, target);
  if (!std::isfinite(level) || !(level > 0)) return;
  if (value_ == 0) {
    value_ = 1 / level;
    return;
  }
  const double sum = kept(scores, target, weights), error = (sum - target) / std::max(sum, target);
  mean_error_ += kSmoothing * (error - mean_error_);
  mean_size_ += kSmoothing * (std::abs(error) - mean_size_);
  const double signal = mean_size_ > 0 ? mean_error_ / mean_size_ : 0;
  value_ *= std::pow(1 / (level * value_), std::max(kLeastGain, signal * signal));
}

void to_json(nlohmann::json& state, const ItemThreshold& threshold) {
  state = {threshold.value_, threshold.mean_error_, threshold.mean_size_};
}

void from_json(const nlohmann::json& state, ItemThreshold& threshold) {
  const auto is_count = [](const nlohmann::json& x) { return x.is_number() && x >= 0.0; };
  if (!state.is_array() || state.size() != 3 || !is_count(state[0]) || !state[1].is_number() ||
      !is_count(state[2]))
    throw Error(ExitCode::kBadData,
                fmt::format("a threshold in the state of VCAS is {}", state.dump()));
  threshold.value_ = state[0];
  threshold.mean_error_ = state[1];
  threshold.mean_size_ = state[2];
}

}  // namespace vcas
