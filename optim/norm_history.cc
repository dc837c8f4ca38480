#include "optim/norm_history.h"

#include <algorithm>
#include <cmath>

namespace vcas {

bool NormHistory::take(double norm) {
  const double spread = std::max(std::sqrt(variance_), kLeastSpread * mean_);
  const double most = mean_ + deviations_ * spread;
  const bool outlier = norms_ >= kFewest && most > 0 && norm > most;
  const double gain = std::max(1 - kDecay, 1 / static_cast<double>(++norms_));
  const double difference = (outlier ? most : norm) - mean_;
  mean_ += gain * difference;
  variance_ = (1 - gain) * (variance_ + gain * difference * difference);
  return outlier;
}

void NormHistory::restore(const nlohmann::json& state) {
  state.at(0).get_to(norms_);
  state.at(1).get_to(mean_);
  state.at(2).get_to(variance_);
}

}  // namespace vcas
