// What gradient norms become: the mean square of those that items have now, by those they had.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

namespace vcas {

// The norms that items had lie in octaves. Each octave has the mean square of what they became.
// It does not fall from one octave to the next (isotonic regression, Ayer et al. 1955).
// Norms are forecast to stay until items have taught otherwise.
class NormForecast {
 public:
  // `half_life`: after so many items what was learned counts half.
  explicit NormForecast(double half_life);

  // An item that stands for `weight` items had the norm `before`, and has `now`.
  void learn(double before, double now, double weight);

  // The roots of the mean squares of what these norms become, [norm].
  std::vector<double> of(const std::vector<double>& norms) const;

  nlohmann::json state() const;
  // Throws Error(kBadData).
  void restore(const nlohmann::json& state);

 private:
  double half_life_;
  std::vector<double> items_, squares_;  // [octave]: sums of weights, and of weights * now^2
};

}  // namespace vcas
