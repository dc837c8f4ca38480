// A method of training: which passes are sampled, how, and what steers it. One file a kind.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "core/part.h"
#include "core/ranks.h"
#include "data/batch.h"
#include "models/model.h"
#include "optim/flops.h"

namespace vcas {

// How a forward and backward of training run.
enum class PassKind {
  kExact,
  kSampled,
  kMeasured  // exact, and the method measures on it
};

// The training that a method steers.
struct Training {
  // Gives batches besides those of training, from the one of number `first` on.
  using ProbeSource = std::function<std::unique_ptr<BatchSource>(std::int64_t first)>;

  Model& model;  // its graph is finished
  Ops& ops;
  std::shared_ptr<Ranks> ranks = one_rank();
  std::uint64_t seed = 0;
  std::int64_t total_steps = 0;
  std::int64_t batch = 0;        // items of a step on this rank
  std::int64_t micro_batch = 0;  // items of one pass
  std::int64_t items = 0;        // of the training data, numbered from 0; 0: not known
  ProbeSource probe_source;      // null where no method asks for it
};

class Method {
 public:
  struct Complaint {
    std::string message, hint;
  };

  virtual ~Method() = default;

  // A step asks in this order: begin_step; of each pass next, hooks, keeps_norms, repeats,
  // end_pass, after_pass; end_step; add_cost.

  // Leaves items out of steps; null: all are computed.
  virtual ItemChooser* chooser() { return nullptr; }

  // Step `step` counts from 0. May run passes of its own.
  // It is the same again after a step that threw: what that has measured is forgotten.
  virtual void begin_step(std::int64_t /*step*/) {}
  // The kind of pass `micro` of this step.
  virtual PassKind next(std::int64_t micro) const = 0;
  // Whether forward keeps the norms of the rows that sampled linears read (Exec::keeps_norms).
  virtual bool keeps_norms(PassKind) const { return false; }
  // What backward leaves to the method; null: exact.
  virtual BackwardHooks* hooks(PassKind) { return nullptr; }
  // Whether the host knows all sizes of such a pass beforehand.
  // Ops::repeat may then repeat it, until a step that probed ends.
  virtual bool repeats(PassKind) const { return true; }
  // The pass over items [first, first + items) of `batch` has been given to the device.
  virtual void end_pass(const Batch& /*batch*/, std::int64_t /*first*/, std::int64_t /*items*/) {}
  // Follows measured passes, when the step has read what it wants of their forward.
  // It may run backwards on that forward, and then passes over other batches.
  virtual void after_pass(Exec&, const BackwardContext&) {}
  // True: the step has probed, and the next one may be sampled otherwise.
  virtual bool end_step() { return false; }
  // False between the steps of one measurement: the state cannot be saved.
  // A run ends with Error(kBadConfig) where it is false after Training::total_steps.
  virtual bool at_rest() const { return true; }
  // Adds what the last step cost.
  virtual void add_cost(FormulaFlops& formula) const { formula.add_exact_step(); }

  // --- for logs and tables ---

  // Whether steps may be sampled.
  virtual bool samples() const { return false; }
  // One line: its settings.
  virtual std::string summary() const = 0;
  // One line: what it now does; empty: nothing that changes.
  virtual std::string progress() const { return {}; }
  // The same by the names of metrics.jsonl: "act_ratio", "weight_ratio", "s".
  virtual nlohmann::ordered_json report() const { return nlohmann::ordered_json::object(); }
  // What the last probe measured, by the names of the event "variance".
  virtual nlohmann::ordered_json measured() const { return nlohmann::ordered_json::object(); }
  // Why it cannot do what its settings ask for, or could not at the last probe.
  // Without a message: it can.
  virtual Complaint complaint() const { return {}; }

  virtual std::size_t bytes() const { return 0; }  // on the device

  // All ranks call it before one asks for the state: they then know what it is made of.
  virtual void gather() {}
  // For checkpoints, bit-exact. Throws Error(kBadData) for a state of another model.
  virtual nlohmann::json state() const { return nullptr; }
  virtual void restore(const nlohmann::json&) {}
  // A number for each item of the training data. Checkpoints keep it as a tensor. Empty: none.
  virtual std::span<float> item_memory() { return {}; }
};

// The settings of a kind of method: a part (core/part.h).
class MethodKind {
 public:
  virtual ~MethodKind() = default;
  virtual std::string summary() const = 0;  // for the help of method.type
  // Turns durations into steps. Throws Error(kBadConfig) for what the number of steps forbids.
  // To be called before a Trainer gets settings in epochs.
  virtual void settle(std::int64_t /*steps_per_epoch*/) {}
  // A line for each setting whose value is not the default, and is not read: which, and why.
  virtual std::vector<std::string> idle_settings(const Model& /*model*/) const { return {}; }
  // Before the graph is finished: adds the gates that the method needs besides the model's.
  virtual void prepare(Model& /*model*/) const {}
  // Throws Error(kBadConfig) for settings that do not fit the model.
  virtual std::unique_ptr<Method> make(const Training& training) const = 0;
};

}  // namespace vcas
