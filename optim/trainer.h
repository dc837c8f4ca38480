// Optimizer steps: forward, backward as the method wants it, update.
// At most two are queued at a time: the device is at one of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "optim/evaluator.h"
#include "optim/methods/method.h"
#include "optim/norm_history.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"

namespace vcas {

struct TrainerOptions {
  std::int64_t total_steps = 0;
  std::int64_t batch = 32;       // items of a step, of all ranks together
  std::int64_t micro_batch = 0;  // items of one forward; 0: those of a step on a rank
  std::int64_t items = 0;        // of the training data, for methods that number them
  std::uint64_t seed = 0;
  OptimizerOptions optimizer = {};
  ScheduleOptions schedule = {};
  Part<MethodKind> method{"vcas", "What backward computes."};
  std::shared_ptr<Ranks> ranks = one_rank();
  bool sends_bf16 = false;               // gradients travel rounded between ranks
  std::int64_t bucket_bytes = 25 << 20;  // of gradients that travel together
};

// Throws Error(kBadConfig) when ranks cannot share steps of `batch` items, or there are none.
// `micro_batch` 0: each takes its share at once.
void check_shares(std::int64_t batch, std::int64_t micro_batch, int ranks);

// Seconds as the host sees them.
// On a device that queues its work the sum over many steps is right, not its parts.
// `probe` is what a method measures beside the passes that train.
// `exchange` is what ranks do and wait for together.
struct StepSeconds {
  double forward = 0, backward = 0, probe = 0, exchange = 0, optimizer = 0;
  double total() const { return forward + backward + probe + exchange + optimizer; }
};

struct StepReport {
  std::int64_t step = 0;                // steps done, this one included
  double loss = 0;                      // mean over the terms: items, or masked positions
  double accuracy = 0;                  // likewise; 0 of a regression
  std::int64_t items = 0, dropped = 0;  // that were computed, and left out before the forward
  double learning_rate = 0;
  double gradient_norm = 0;  // before clipping
  double clip_factor = 1;    // what the update took the gradient times
  bool exact = true;         // the gradient of this step was not sampled
  bool measured = false;     // it was exact for the method to measure on it
  bool skipped = false;      // an outlier, which has changed nothing
  bool probed = false;       // a probe ended with this step: the method may have changed
  double imbalance = 1;      // of the ranks' forwards and backwards: longest seconds over the mean
  StepSeconds seconds;       // of this rank
};

class Trainer {
 public:
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // The graph of `model` is finished in `ops`.
  // Throws Error(kBadConfig) for a batch that the ranks cannot share or the graph has no room for.
  // It also throws that for options that no configuration could have, and what LossQueue refuses.
  // `probe_source`: for methods that ask for it; may be null for others.
  Trainer(Model& model, Ops& ops, const TrainerOptions& options,
          Training::ProbeSource probe_source);

  // Gives the device a step and does not wait for its end (docs/kernels.md).
  // `batch`: this rank's share. All ranks queue and finish in the same order.
  // Throws Error(kBadConfig) for more items than a step has, or if no loader has asked `chooser`.
  // It also throws that while the weights are not set.
  // Throws Error(kBadData) for an item without the label to learn, and what Model::load throws.
  // A step that threw is none: the next batch takes its place.
  // Running statistics, as of BatchNorm, may have moved with the batch that was refused.
  // A step whose method throws at its end has moved the weights already.
  // The report has no loss, accuracy and gradient norm yet, and the items of this rank alone.
  // If a gradient is not finite, the device keeps the weights, then and in all later steps.
  // Trainer::restore ends that, with the present state too.
  const StepReport& queue(const Batch& batch);
  // `queued`: steps that were queued and not finished. `full`: no other step can be queued now.
  // A step that ended a probe is finished before the next is queued.
  // Its report has the probe's result.
  std::size_t queued() const { return queued_.size(); }
  bool full() const { return losses_.full() || (!queued_.empty() && queued_.back().report.probed); }
  // Whether the device is done with the first of them, so that `finish` would not wait.
  bool arrived() const { return losses_.arrived(); }
  // The report of the first of them. Throws Error(kDiverged) when the loss or the gradient is not
  // finite.
  StepReport finish();
  // `queue` and `finish` at once. No other step may be queued.
  StepReport step(const Batch& batch);
  // Leaves what this rank exchanges, and other ranks do not come to: this process is to end.
  // Another thread may call it.
  void give_up() { exchange_->abort(); }
  // Throws InternalError naming the ranks whose weights are not those of rank 0.
  void check_ranks();
  // Each rank updates a part of the weights and moments of its own. All have all weights as layers
  // read them. After this they have all that a checkpoint holds too.
  void gather_state();
  // Makes whole a slab of which each rank has its part. All ranks call it.
  void gather(const Tensor& slab);
  // On this rank alone, without dropout. `logits` gets the logits appended, row by row.
  Evaluation evaluate(const Batch& batch, std::vector<float>* logits = nullptr);

  std::int64_t steps() const { return step_; }  // queued ones included
  std::int64_t finished() const { return step_ - static_cast<std::int64_t>(queued_.size()); }
  bool done() const { return step_ >= options_.total_steps; }
  // Whether the state can be saved once all steps are finished: not in the middle of a measurement.
  bool at_rest() const { return method_->at_rest(); }
  const Method& method() const { return *method_; }
  // What leaves items out of the batches, for the Loader; null: nothing does.
  ItemChooser* chooser() { return method_->chooser(); }
  const std::string& method_type() const { return options_.method.type; }
  std::span<float> item_memory() { return method_->item_memory(); }
  Optimizer& optimizer() { return optimizer_; }
  const Schedule& schedule() const { return schedule_; }
  Model& model() { return model_; }
  Ops& ops() { return ops_; }
  std::size_t planned_bytes() const;

  // Everything besides parameters and optimizer tensors.
  // Throws Error(kBadConfig) while a step is queued, `state` also where not at_rest.
  nlohmann::json state() const;
  // Throws Error(kBadData) for what is no such state. The steps are then those before.
  void restore(const nlohmann::json& state);

 private:
  // One forward and backward of training that comes again.
  struct TrainingPass {
    PassKind kind;
    BatchShape batch;
    double loss_scale = 0;
    bool adds_gradients = false, sends_gradients = false;
    std::unique_ptr<Recording> recording;
    double forward_share = 0;  // of the seconds, the first time
  };
  class Stopwatch;
  struct Queued {
    StepReport report;
    double loss_scale;
  };

  void forget_sampled_passes();
  TrainingPass& pass_of(PassKind kind, const BatchShape& batch);
  template <class Body>
  void repeat_pass(PassKind kind, const Body& body, StepSeconds& seconds, Stopwatch& watch);
  std::string bad_gradient();
  double loss_scale(const Batch& batch);
  void add_nothing();
  void check_batch(const Batch& batch);
  bool is_outlier();
  void update(StepReport& report, Stopwatch& watch);

  Model& model_;
  Ops& ops_;
  TrainerOptions options_;
  Place place_;
  std::int64_t micro_batches_;  // of a step on this rank
  Evaluator evaluator_;
  LossQueue losses_;
  std::unique_ptr<Exchange> exchange_;
  std::vector<GradientBucket> buckets_;  // that ranks share; one rank alone has none
  Optimizer optimizer_;
  Schedule schedule_;
  NormHistory norms_;
  std::unique_ptr<Method> method_;
  std::vector<Tensor> gradients_;  // of all parameters
  BackwardContext context_;        // of training passes
  std::vector<TrainingPass> passes_;
  std::int64_t step_ = 0;
  std::vector<Queued> queued_;
  std::vector<double> gathered_;  // of all ranks
};

}  // namespace vcas
