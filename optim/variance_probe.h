// Measures V_s, V_act and V_w on a few batches (docs/sampling.md; the paper's Algorithm 1).
#pragma once

#include <vector>

#include "layers/graph.h"
#include "optim/vcas_controller.h"

namespace vcas {

// A probe takes `repeats` batches. V_s comes from the two halves of each, at the same weights:
// a batch's gradient is a sum over items that were drawn alike.
// A probe looks at the entries of some rows and columns of each weight gradient, drawn anew.
// They stand for all. They cost their share of the weight gradient's FLOPs.
class VarianceProbe {
 public:
  VarianceProbe(Graph& graph, Ops& ops, double fraction, int repeats);

  // Draws the entries of probe `number`.
  void begin(std::uint64_t seed, std::uint64_t number);

  // Both follow the same forward in `exec`. Neither waits for its measurements.
  // `exact_backward`: its parameter gradients go to `context.sink`. Ops::repeat may repeat it.
  // `sampled_backwards`: `passes` backwards with SampleA at the ratios of `context`.
  // Their gradients go nowhere.
  void exact_backward(Exec& exec, const BackwardContext& context) const;
  void sampled_backwards(Exec& exec, const BackwardContext& context);

  // How many sampled backwards a batch needs at the ratios of `context`.
  // If items are dropped: as many as batches. If rows only: one, for V_w, as V_act is 0. Else none.
  int passes(const BackwardContext& context) const;

  int batches() const { return static_cast<int>(batches_.size()); }
  bool complete() const { return batches() == repeats_; }
  // Only for a complete probe.
  ProbeResult result();

  // The share of the entries of each sampled linear's weight that a probe looks at.
  std::vector<double> entry_shares() const;
  std::size_t bytes() const { return indices_.bytes() + measured_.bytes(); }

 private:
  // What one backward measures, and where.
  struct Pass {
    std::vector<EntryBlock> blocks;  // by parameter, empty but for sampled linears
    BackwardRecord record;
  };
  struct BatchMeasurement {
    std::int64_t items = 0;
    int passes = 0;
    std::vector<double> batch_variance;          // [linear]
    std::vector<double> act_error;               // [linear]: mean over repeats of ||G_ij - G_i||^2
    std::vector<double> weight_variance;         // [linear]: mean over repeats
    std::vector<std::vector<double>> item_norm;  // [gate][item]
  };

  void receive();

  Graph& graph_;
  Ops& ops_;
  int repeats_;
  Buffer indices_;   // of the entries
  Buffer measured_;  // on one batch
  std::unique_ptr<Mailbox> mailbox_;
  bool sent_ = false;  // what the last of batches_ has measured
  Pass exact_;
  std::vector<Pass> sampled_;  // [repeat]
  std::vector<BatchMeasurement> batches_;
};

}  // namespace vcas
