// The paper's count of FLOPs. The unit is one forward of all sampled linears.
// rho: share of the items that the linear's block keeps. nu: share of their rows that dW keeps.
// A step of training costs
//
//     forward 1 + dX rho + dW rho nu                                        exact: 3
//
// times the share of the batch's items that SampleF keeps.
// Attention products, norms, heads and embeddings count as nothing.
// A mean over linears weights each by its size. CountOps counts what really runs.
//
// A probe has M batches. It reads the share b of each: the first micro-batch. It costs
//
//     separate:  b (3 M + M^2 (1 + 2 mean rho))
//     in place:  b (M mean (1.5 f) + M P mean (rho (1 + f)))
//
// Separate is the paper's formula: M exact steps and M^2 sampled ones, each with its forward.
// In place counts what runs. Its M exact passes are steps of training and count as such.
// They compute the share f of each dW again, and once more for the first half of the items.
// P sampled passes follow on the same forward (VarianceProbe::passes): dX, and the share f of dW.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

namespace vcas {

// A method that keeps the share r of a batch has rho = r, nu = 1: (1 + 2r) / 3 of exact training.
class FormulaFlops {
 public:
  struct Linear {
    int gate;     // of the output of its block: index of its rho; -1 = no gate above it
    double size;  // what its forward costs in relation to others: C D, times the rows of an item
  };

  // In the order of the weight ratios.
  explicit FormulaFlops(std::vector<Linear> linears);

  // `kept`: the share of the batch's items that the forward computes.
  // The ratios of a sampled step are shares of these.
  void add_exact_step(double kept = 1);
  void add_sampled_step(const std::vector<double>& act_ratio,
                        const std::vector<double>& weight_ratio, double kept = 1);
  void add_separate_probe(int repeats, double batch_share, const std::vector<double>& act_ratio);
  // Besides the exact steps that the probe measures: these are steps like any other.
  // `entry_share`: of each linear, the share of its weight's entries that the probe looks at.
  void add_in_place_probe(int repeats, int passes, double batch_share,
                          const std::vector<double>& entry_share,
                          const std::vector<double>& act_ratio);

  // Saved shares of what the same steps cost in exact training. 0 before the first step.
  // Negative: probes cost more than sampling saves.
  // "Backward" leaves forwards out: the paper's "BP".
  double saved() const;
  double backward_saved() const;

  // For checkpoints, bit-exact. Throws Error(kBadData).
  nlohmann::json to_json() const;
  void from_json(const nlohmann::json& state);

 private:
  double mean_act(const std::vector<double>& act_ratio) const;

  std::vector<Linear> linears_;  // sizes sum to 1
  std::int64_t steps_ = 0;
  double forward_ = 0, backward_ = 0;
};

}  // namespace vcas
