// Which gradients are outliers, by the norms of those before them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

namespace vcas {

// An outlier's norm is above the running mean by more than so many standard deviations.
class NormHistory {
 public:
  static constexpr std::int64_t kFewest = 50;  // norms without which none is an outlier
  static constexpr double kDecay = 0.99;       // of the weight of a norm, a step
  // The least standard deviation, as a share of the mean: norms may be nearly constant.
  static constexpr double kLeastSpread = 0.1;

  // `deviations` 0: there are no outliers.
  explicit NormHistory(double deviations) : deviations_(deviations) {}

  bool looks() const { return deviations_ > 0; }
  // Whether a finite norm is an outlier. It then counts as the largest that is none, so norms that
  // stay long become usual ones.
  bool take(double norm);
  double mean() const { return mean_; }

  // {norms, mean, variance}
  nlohmann::json state() const { return {norms_, mean_, variance_}; }
  void restore(const nlohmann::json& state);

 private:
  double deviations_;
  std::int64_t norms_ = 0;
  double mean_ = 0, variance_ = 0;
};

}  // namespace vcas
