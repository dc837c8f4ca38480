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
// A probe has B batches, with P sampled passes each (VarianceProbe::passes).
// It reads the share b of each batch: the first micro-batch. It costs
//
//     separate:  b B (3 + P (1 + 2 mean rho))
//     in place:  b B (mean f + P mean (rho (1 + f)))
//
// Separate is the paper's formula: exact steps and sampled ones, each with its forward.
// In place counts what runs. Its exact passes are steps of training and count as such.
// They sketch each dW, which costs the share f of it.
// The sampled passes follow on the same forward: dX, and a sketch of dW.
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
  // `batch_share`: b. `act_ratio`: of the sampled passes.
  void add_separate_probe(int batches, int passes, double batch_share,
                          const std::vector<double>& act_ratio);
  // Besides the exact steps that the probe measures: these are steps like any other.
  // `sketch_share`: f of each linear.
  void add_in_place_probe(int batches, int passes, double batch_share,
                          const std::vector<double>& sketch_share,
                          const std::vector<double>& act_ratio);

  // In forwards of a whole batch. Several ranks have the mean of what each finds of its share.
  struct Cost {
    double forward = 0, backward = 0;
  };
  const Cost& cost() const { return cost_; }
  // A step, with its probe if it has one.
  void add_step(const Cost& cost);
  // Forgets all steps.
  void clear();

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
  Cost cost_;
};

}  // namespace vcas
