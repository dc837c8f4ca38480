// Finds sampling that takes longer than what it spares (docs/sampling.md).
#pragma once

#include <vector>

#include "optim/methods/controller.h"
#include "optim/methods/sampled_backward.h"

namespace vcas {

class AutoExact {
 public:
  explicit AutoExact(const ControlledModel& model);

  // What a probe has timed on an exact backward.
  void add_exact(const MeasuredBatch& batch);
  // What a sampled backward took at these ratios, of the share of the items that the forward had.
  // Counts once an exact one is known.
  void add_sampled(const SampleTimes& times, const KeepRatios& ratios, double forward_share = 1);

  struct Found {
    std::vector<int> gates, linears;
    bool any() const { return !gates.empty() || !linears.empty(); }
  };
  // What took longer in sum to sample than it spared, in eight backwards or more.
  // Each is told once.
  Found take();

 private:
  // Seconds over the backwards that were sampled.
  struct Balance {
    double taken = 0, spared = 0;
    int backwards = 0;

    void add(double seconds, double saved);
    bool is_loss() const;
  };

  ControlledModel model_;
  // Sums over exact backwards: of dW and its rows by linear, and of all below a gate.
  std::vector<double> weight_seconds_, weight_rows_, below_seconds_;
  int exact_ = 0;  // backwards
  std::vector<Balance> gates_, linears_;
};

}  // namespace vcas
