// Measures V_s, V_act and V_w on a few batches (docs/sampling.md; the paper's Algorithm 1).
#pragma once

#include <vector>

#include "optim/methods/sampled_backward.h"
#include "optim/methods/vcas_controller.h"

namespace vcas {

// An exact backward that looks at entries, and at the gradient norms of items at gates.
class ExactLook final : public BackwardHooks {
 public:
  std::vector<EntryBlock> entries;  // [sampled linear]; none: empty
  std::vector<Tensor> item_norm;    // [gate], S [N] or more: ||G_i(l)||_F
  Tensor measured;                  // the memory of all that a probe measures on a batch

  void begin(Exec& exec) override;
  const RowSets& at_gate(Exec& exec, const GateSite& site, Gradient& gradient,
                         const RowSets& rows) override;
  void weight_gradient(Exec& exec, const WeightUse& use) override;
};

// A probe takes `repeats` batches. V_s comes from the two halves of each, at the same weights:
// a batch's gradient is a sum over items that were drawn alike.
// A probe looks at the entries of some rows and columns of each weight gradient, drawn anew.
// They stand for all. They cost their share of the weight gradient's FLOPs.
class VarianceProbe {
 public:
  // `sampled` is of the graph, and does the sampled backwards.
  VarianceProbe(Graph& graph, Ops& ops, SampledBackward& sampled, double fraction, int repeats);

  // Draws the entries of probe `number`.
  void begin(std::uint64_t seed, std::uint64_t number);

  // The hooks of the exact backward of a batch. Ops::repeat may repeat it.
  BackwardHooks& exact_backward() { return exact_; }
  // Follows it, on the same forward: `passes` backwards with SampleA at the ratios of `sampled`.
  // Their gradients go nowhere. Waits for no measurement.
  void sampled_backwards(Exec& exec, const BackwardContext& context);

  // How many sampled backwards a batch needs at the present ratios.
  // If items are dropped: as many as batches. If rows only: one, for V_w, as V_act is 0. Else none.
  int passes() const;

  int batches() const { return static_cast<int>(batches_.size()); }
  bool complete() const { return batches() == repeats_; }
  // Only for a complete probe.
  ProbeResult result();

  // The share of the entries of each sampled linear's weight that a probe looks at.
  std::vector<double> entry_shares() const;
  std::size_t bytes() const { return indices_.bytes() + measured_.bytes(); }

 private:
  // What one sampled backward measures, and where.
  struct SampledLook {
    std::vector<EntryBlock> entries;  // [sampled linear]
    Tensor weight_variance;           // f64 [sampled linear]
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
  SampledBackward& sampled_backward_;
  int repeats_;
  Buffer indices_;   // of the entries
  Buffer measured_;  // on one batch
  std::unique_ptr<Mailbox> mailbox_;
  bool sent_ = false;  // what the last of batches_ has measured
  ExactLook exact_;
  std::vector<SampledLook> sampled_;  // [repeat]
  std::vector<Tensor> no_gradients_;
  std::vector<BatchMeasurement> batches_;
};

}  // namespace vcas
