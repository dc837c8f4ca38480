// One model in training: its data order, its trainer, and what the run has cost so far.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/decorators/range_ops.h"
#include "models/weights_io.h"
#include "optim/flops.h"
#include "optim/time_saved.h"
#include "optim/trainer.h"
#include "tools/evaluation.h"
#include "tools/model_setup.h"

namespace vcas {

// Sums over a run. Checkpoints save them, so they cover what ran before a resume.
struct RunTotals {
  std::int64_t clipped_steps = 0, skipped_steps = 0;
  std::int64_t clipped_after = 0;  // the step that clipped ones are counted from
  double late_loss = 0;            // of the last tenth of the steps
  std::int64_t late_steps = 0;
  double data_seconds = 0;  // waiting for batches
  double eval_seconds = 0, checkpoint_seconds = 0;
  StepSeconds step_seconds;
  std::int64_t items = 0, dropped_items = 0;  // that were computed, and dropped before the forward

  // The share of the items of all steps.
  double forward_share() const {
    return dropped_items == 0
               ? 1
               : static_cast<double>(items) / static_cast<double>(items + dropped_items);
  }
  nlohmann::json to_json() const;
  void from_json(const nlohmann::json& state);
};

// Shares of what the same steps cost in exact training. Negative: it became more.
// NaN: nothing tells, as no operation of the model is counted.
struct Savings {
  double flops = 0;           // counted, probes included
  double backward_flops = 0;  // the same without forwards
  double formula = 0, formula_backward = 0;
  std::optional<Estimate> time;  // empty: nothing is known yet

  // As metrics.jsonl has it: "time_saved" is null until the estimate can be told.
  nlohmann::ordered_json to_json() const;
};

struct StepFlops {
  double forward = 0, backward = 0;
};
// Counts an exact step of `batch`, for all ranks by the share of this one.
// Its passes leave gradients behind, which every step clears. `ops` forgets what it has counted.
StepFlops count_exact_step(Model& model, CountOps& ops, const RunConfig& config,
                           const Batch& batch);

// The formula for `graph`. `batch` says how many rows an item has.
FormulaFlops make_formula(const Graph& graph, const Batch& batch);

class Session {
 public:
  // `data` must outlive the session.
  // All ranks make one, of the same configuration and data.
  // Throws kBadConfig for items longer than the model's positions.
  Session(const RunConfig& config, const RunData& data, const Watch& watch = {},
          std::shared_ptr<Ranks> ranks = one_rank());

  // An exact pass before the first step. It says how many FLOPs exact training takes.
  // It makes the first step as fast as the others. Without it the first step does this.
  // Throws kBadConfig if the device cannot run the model.
  void prepare();
  // Gives the device the next step.
  void queue_step();
  // Takes the reports of the steps that the device is done with. With `all`: of every step.
  // It waits for a step if no other can be queued before.
  void finish_steps(bool all, const std::function<void(const StepReport&)>& take);
  // Both, for one step.
  StepReport step();
  // Each rank evaluates its share of the batches, and all get the result.
  // Empty if `stop` said so to one of them between two batches.
  std::optional<TestResult> evaluate(const std::function<bool()>& stop);

  Trainer& trainer() { return *trainer_; }
  const Trainer& trainer() const { return *trainer_; }
  Model& model() { return *ready_.model; }
  const Model& model() const { return *ready_.model; }
  CountOps& ops() { return *ready_.ops; }

  // Whether steps can be recorded: there is a trace, or the device has a profiler.
  bool records() const { return ready_.trace || ready_.ranges; }
  // Steps are recorded between the two. The trace is complete after the second.
  void start_recording();
  void stop_recording();
  // From here on kDiverged has the operation that made the number. Needs Watch::finite.
  void watch() { ready_.finite->watch(); }
  RunTotals& totals() { return totals_; }
  const RunTotals& totals() const { return totals_; }
  // What the pretrained weights gave. Empty: the model starts from random ones.
  const std::optional<LoadReport>& pretrained() const { return pretrained_; }
  // Options for loaders of the training batches of this rank.
  LoaderOptions loader_options() const;
  std::int64_t total_steps() const { return total_steps_; }
  std::int64_t steps_per_epoch() const { return steps_per_epoch_; }
  std::int64_t steps_of(const Duration& duration) const { return duration.steps(steps_per_epoch_); }
  std::int64_t epochs() const { return (total_steps_ + steps_per_epoch_ - 1) / steps_per_epoch_; }
  double epoch(std::int64_t step) const;

  // FLOPs of an exact step, counted on the first batch.
  StepFlops exact_step_flops();
  // FLOPs of forward and backward of an exact step with padded texts, as most programs have them.
  // All are then as long as the longest item of the training data.
  // 0: there are no texts, or prepare() comes later.
  double padded_step_flops() const { return padded_step_flops_; }
  // FLOPs of a phase since the beginning of the run, on this rank.
  double flops(Phase phase) const;
  // FLOPs of the steps that are finished, on all ranks.
  double train_flops() const { return counted_.forward + counted_.backward + counted_.probe; }
  double train_seconds() const { return totals_.data_seconds + totals_.step_seconds.total(); }
  // What train_seconds() would be if all steps were exact.
  // Forward, update and waiting for data are the same, and so is other load on the machine.
  // A forward of this run stands for `backward_of_forward` of an exact backward.
  double exact_train_seconds(double backward_of_forward) const;
  // Seconds of an exact backward for one second of the forward before it.
  // The exact steps of probes in place tell it. Other load on the machine slows both alike.
  // Empty: too few of them, other probes, or a device that queues its work.
  // The forwards of a run that drops items before them tell nothing of exact training.
  const std::optional<Estimate>& backward_of_forward() const { return backward_of_forward_; }
  Savings savings() const;

  // Totals and trainer. Weights and optimizer tensors are not in it.
  nlohmann::json state() const;
  void restore(const nlohmann::json& state);

 private:
  // What steps cost.
  struct Counted {
    double forward = 0, backward = 0, probe = 0;       // FLOPs
    double dropped_forward = 0;                        // of the items that were dropped
    double sampled_forward = 0, sampled_backward = 0;  // the part of sampled steps
    double formula_forward = 0, formula_backward = 0;  // FormulaFlops::Cost of the last step
  };
  struct Queued {
    Counted counted;
    double look_seconds;  // of a probe, within the backward of this step
  };

  StepReport finish_step();
  Counted counted_so_far() const;  // of the steps queued so far, on this rank
  Counted sum_over_ranks(Counted own) const;

  const RunConfig config_;
  const RunData& data_;
  std::shared_ptr<Ranks> ranks_;
  ReadyModel ready_;
  std::int64_t steps_per_epoch_, total_steps_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Loader> loader_;
  std::optional<LoadReport> pretrained_;
  FormulaFlops formula_;  // of the steps that are finished, on all ranks
  std::deque<Queued> queued_;
  Counted counted_;  // up to the last step that was finished, on all ranks
  RunTotals totals_;
  // FLOPs, of the steps queued so far.
  double dropped_forward_ = 0, sampled_forward_ = 0, sampled_backward_ = 0;
  std::optional<StepFlops> exact_step_flops_;
  double padded_step_flops_ = 0;
  // Seconds of backward for one of forward, ascending: of each probe the mean over its steps.
  // The steps of one probe are not independent.
  std::vector<double> probed_ratios_;
  double probed_ratio_ = 0;  // sum over the steps of the running probe
  int probed_steps_ = 0;
  std::optional<Estimate> backward_of_forward_;
  std::map<Phase, double> earlier_flops_;  // before a resume, a rank's share
};

// 0 if there are no values. An even number has the mean of the two in the middle.
double median(std::vector<double> values);

}  // namespace vcas
