// How many items a gate keeps of each batch, where the host sees their scores before it draws.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

namespace vcas {

// One threshold t for all batches: item i is kept with P_i = min(1, s_i / t), s_i its score.
// So a batch whose gradient lies in few items keeps few, and one that needs many keeps many.
// No other probabilities that keep as many items in the mean over the batches add less variance:
// the sum of s_i^2 / P_i is least where P_i / s_i is the same for all (docs/sampling.md).
// t depends on earlier steps and on scores alone, so draws stay unbiased.
class ItemThreshold {
 public:
  // The sum over i of P_i. Scores that are not finite count 1. `target` where t is not set.
  // `weights`: how often each score counts; empty: once.
  double kept(const std::vector<double>& scores, double target,
              const std::vector<double>& weights = {}) const;
  // How many items systematic selection keeps for such a sum: the nearest number, at least 1.
  static double whole(double sum);

  // With the scores of a step, before it draws: moves t so that the sum has the mean `target` over
  // the steps. It follows scores that rise or fall from step to step.
  // The first step sets t so that its sum is `target`.
  void follow(const std::vector<double>& scores, double target,
              const std::vector<double>& weights = {});

  double value() const { return value_; }  // t; 0: no step was seen
  // With the memory; from_json throws Error(kBadData) for one that no threshold has.
  friend void to_json(nlohmann::json& state, const ItemThreshold& threshold);
  friend void from_json(const nlohmann::json& state, ItemThreshold& threshold);

 private:
  double value_ = 0;
  double mean_error_ = 0, mean_size_ = 0;  // of sums: with its sign, and without
};

}  // namespace vcas
