// The paper's count of FLOPs, in units of one forward of all sampled linears. Of a linear whose
// block keeps rho of the items, and which keeps nu of their rows for its weight gradient, a step of
// training costs
//
//     forward 1 + dX rho + dW rho nu                                        exact: 3
//
// Everything else (attention products, norms, heads, embeddings) counts as nothing, and a mean over
// linears weights each by its size. CountOps counts what really runs.
//
// A probe of M batches, of which it reads the share b (the first micro-batch of a step), costs
//
//     separate:  b (3 M + M^2 (1 + 2 mean rho))
//     in place:  b (M mean f + M P mean (rho (1 + f)))
//
// Separate is the paper's formula: M exact steps on batches of their own, and M^2 sampled ones,
// each with its forward. In place counts what such a probe runs. Its M exact passes are steps of
// training, counted as such, that compute the share f of each dW a second time to look at it. P
// sampled passes follow on the same forward, M or as many as are needed (VarianceProbe::passes):
// dX on the kept items, and the share f of dW on them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

namespace vcas {

// A method that keeps the share r of a batch is rho = r, nu = 1: (1 + 2r) / 3 of exact training.
class FormulaFlops {
 public:
  struct Linear {
    int gate;     // of the output of its block: index of its rho; -1 = no gate above it
    double size;  // what its forward costs in relation to others: C D, times the rows of an item
  };

  // In the order of the weight ratios.
  explicit FormulaFlops(std::vector<Linear> linears);

  void add_exact_step();
  void add_sampled_step(const std::vector<double>& act_ratio,
                        const std::vector<double>& weight_ratio);
  void add_separate_probe(int repeats, double batch_share, const std::vector<double>& act_ratio);
  // Besides the exact steps that the probe measures, which are steps like any other.
  // `entry_share`: of each linear, the share of its weight's entries that the probe looks at.
  void add_in_place_probe(int repeats, int passes, double batch_share,
                          const std::vector<double>& entry_share,
                          const std::vector<double>& act_ratio);

  // Shares of what the same steps cost in exact training, negative where probes cost more than
  // sampling saves; 0 before the first step. "Backward" leaves forwards out: the paper's "BP".
  double saved() const;
  double backward_saved() const;

  // For checkpoints; bit-exact. Throws Error(kBadData).
  nlohmann::json to_json() const;
  void from_json(const nlohmann::json& state);

 private:
  double mean_act(const std::vector<double>& act_ratio) const;

  std::vector<Linear> linears_;  // sizes sum to 1
  std::int64_t steps_ = 0;
  double forward_ = 0, backward_ = 0;
};

}  // namespace vcas
