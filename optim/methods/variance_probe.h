// Measures V_s, V_act and V_w on a few batches (docs/sampling.md; the paper's Algorithm 1).
#pragma once

#include <functional>
#include <vector>

#include "optim/methods/controller.h"
#include "optim/methods/device_clock.h"
#include "optim/methods/sampled_backward.h"

namespace vcas {

// An exact backward that sketches the items' gradients, and looks at their norms at gates.
class ExactLook final : public BackwardHooks {
 public:
  GradientSketches sketches;
  std::vector<Tensor> item_score;  // [gate], S [N] or more (item_scores)
  bool scores_per_token = false;
  Tensor measured;  // the memory of all that a probe measures on a batch
  // As of MeasuredBatch, of the last backward; empty: they are not wanted.
  // Each reading of the clock waits for the device.
  std::vector<double> weight_seconds, item_seconds;

  void begin(Exec& exec) override;
  bool reads_norms() const override { return !item_score.empty(); }
  std::span<const RowSets> at_gate(Exec& exec, const GateSite& site, Gradient& gradient,
                                   const RowSets& rows) override;
  void weight_gradient(Exec& exec, const WeightUse& use) override;
  void flush(Exec& exec) override;
  bool waits() const override { return BackwardHooks::waits() || sketches.waits(); }

 private:
  // Adds the time since the last call to `seconds`, if it is wanted.
  void lap(Exec& exec, double* seconds);

  DeviceClock clock_;
  double* below_gate_ = nullptr;  // of item_seconds, where backward now is
};

// A probe takes a few batches. V_s comes from the items of each, at the same weights:
// a batch's gradient is a sum over items that were drawn alike.
// Sketches of the weight gradients stand for them. Their signs are drawn anew for each probe.
// Where a layer mixes the items of a batch, their parts do not tell how its gradient varies.
// There V_s comes from the gradients of the batch and of another one.
class VarianceProbe {
 public:
  // Runs forward on another batch of the graph, drawn as the measured one.
  using OtherForward = std::function<Exec()>;

  struct Options {
    double fraction = 0.01;  // buckets of a sketch, as a share of the weight's entries
    int most_passes = 2;     // on a batch
    bool curves = false;     // MeasuredBatch::row_score
    bool seconds = false;    // MeasuredBatch::weight_seconds and item_seconds
    bool scores_per_token = false;
    std::int64_t most_items = 0;  // of a batch; 0: as many as the graph takes
  };
  // `sampled` is of the graph, and does the sampled backwards.
  VarianceProbe(Graph& graph, Ops& ops, SampledBackward& sampled, const Options& options);

  // Draws the signs of probe `number`, which has `batches` batches, and `passes` sampled backwards
  // of each at most.
  void begin(std::uint64_t seed, std::uint64_t number, int batches, int passes);

  // The hooks of the exact backward of a batch. Ops::repeat may repeat it if it draws no rows.
  BackwardHooks& exact_backward() { return exact_; }
  // Follows it, on the same forward: `passes` backwards with SampleA at the ratios of `sampled`.
  // Their gradients go nowhere. Waits for no measurement.
  // Where a layer mixes items, `other` is called at the end: the graph then holds that batch.
  void sampled_backwards(Exec& exec, const BackwardContext& context,
                         const OtherForward& other = {});

  // Whether the exact backward draws rows, at ratios that the next probe may not have.
  bool draws_rows() const;
  // How many sampled backwards a batch needs at the present ratios.
  // If rows only are dropped: one, for V_w, as V_act is 0. If nothing is: none.
  int passes() const;

  // Batches of this probe so far.
  int measured() const { return static_cast<int>(batches_.size()); }
  // Forgets all but so many batches: the step that measured the others has failed.
  void keep_measured(int batches);
  bool complete() const { return std::ssize(batches_) == wanted_batches_; }
  // Only for a complete probe.
  const std::vector<MeasuredBatch>& result();

  // The buckets of each sampled linear's sketch, as a share of its weight's entries.
  std::vector<double> sketch_shares() const;
  std::size_t bytes() const { return signs_.bytes() + space_.bytes() + measured_.bytes(); }

 private:
  // What one sampled backward measures, and where.
  struct SampledLook {
    std::vector<GradientSketch> linears;
    Tensor weight_variance;  // f64 [sampled linear]
  };

  void plan_sketches(double fraction);
  double variance_of_two(const std::byte* host, std::size_t linear) const;
  std::vector<double> values(const std::byte* host, const Tensor& tensor, std::int64_t count) const;
  MeasuredBatch batch_sizes() const;
  void receive();

  Graph& graph_;
  Ops& ops_;
  SampledBackward& sampled_backward_;
  Options options_;
  int wanted_batches_ = 0, wanted_passes_ = 0;
  Buffer signs_;
  Buffer space_;     // of the sketches of one linear
  Buffer measured_;  // on one batch
  std::unique_ptr<Mailbox> mailbox_;
  bool sent_ = false;  // what the last of batches_ has measured
  ExactLook exact_;
  std::vector<SampledLook> sampled_;   // [pass]
  std::vector<GradientSketch> other_;  // [linear] of the other batch, if a layer mixes items
  std::int64_t other_items_ = 0;
  std::vector<MeasuredBatch> batches_;
};

}  // namespace vcas
