// Measures V_s, V_act and V_w on a few batches (docs/sampling.md; the paper's Algorithm 1).
#pragma once

#include <vector>

#include "layers/graph.h"
#include "optim/vcas_controller.h"

namespace vcas {

// A probe takes `repeats` batches. V_s is from the two halves of each, at the same weights: a
// batch's gradient is a sum over items that were drawn alike. Of each weight gradient a probe looks
// at the entries of some rows and columns, drawn anew for each probe, which stand for all:
// computing them costs their share of the weight gradient's FLOPs.
class VarianceProbe {
 public:
  VarianceProbe(Graph& graph, Ops& ops, double fraction, int repeats);

  // Draws the entries of probe `number`.
  void begin(std::uint64_t seed, std::uint64_t number);

  // Both after the same forward in `exec`: first the exact backward of a batch, whose parameter
  // gradients go where `context.sink` says; then `repeats` backwards with SampleA at the ratios of
  // `context`, whose gradients go nowhere.
  void exact_backward(Exec& exec, const BackwardContext& context);
  void sampled_backwards(Exec& exec, const BackwardContext& context);

  int batches() const { return static_cast<int>(batches_.size()); }
  bool complete() const { return batches() == repeats_; }
  // Of a complete probe.
  ProbeResult result() const;

  // The share of the entries of each sampled linear's weight that a probe looks at.
  std::vector<double> entry_shares() const;
  std::size_t bytes() const { return buffer_.bytes(); }

 private:
  struct BatchMeasurement {
    std::vector<double> batch_variance;          // [linear]
    std::vector<double> act_error;               // [linear]: mean over repeats of ||G_ij - G_i||^2
    std::vector<double> weight_variance;         // [linear]: mean over repeats
    std::vector<std::vector<double>> item_norm;  // [gate][item]
  };

  void read_blocks(Tensor EntryBlock::*which, std::vector<std::vector<double>>& out) const;

  Graph& graph_;
  Ops& ops_;
  int repeats_;
  Buffer buffer_;
  std::vector<EntryBlock> blocks_;  // by parameter, empty but for sampled linears
  GradSink sampled_sink_;
  std::vector<std::vector<double>> exact_;  // [linear][entry], of the last exact pass
  std::vector<BatchMeasurement> batches_;
};

}  // namespace vcas
