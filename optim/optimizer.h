// Optimizers over the slabs of all parameters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/part.h"
#include "kernels/buffer.h"
#include "layers/parameters.h"

namespace vcas {

// A step of some parameters. All tensors but the factor are equally long.
struct Update {
  Tensor param, rounded, grad;     // rounded: of bf16 only
  std::vector<Tensor> state = {};  // as UpdateRule::state names them
  Tensor clip_factor = {};         // f64 [1]
  double learning_rate = 0, weight_decay = 0;
  std::int64_t decayed = 0;  // so many have weight decay, the first ones
  std::int64_t step = 0;     // from 1
};

// A kind of optimizer: its settings and its step, in one source file.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::string summary() const = 0;  // for the help of optimizer.name
  // The names in checkpoints of slabs as long as the parameters'.
  virtual std::vector<std::string> state() const = 0;
  // A line for each setting whose value is not the default, and is not read: which, and why.
  virtual std::vector<std::string> idle_settings() const { return {}; }
  // Takes the gradient times the factor. Changes nothing where that is not finite.
  virtual void step(Ops& ops, const Update& update) const = 0;
};

struct OptimizerOptions {
  Part<UpdateRule> kind{"adamw", "Kind of optimizer.", "name"};
  double weight_decay = 0;
  double max_gradient_norm = 0;
  std::string clip = "norm";
  double skip_deviations = 0;

  void fields(Setting& v) {
    kind.fields(v);
    v.field("weight_decay", weight_decay,
            "Weight decay, not on biases and norms, nor on a ViT's class token and positions.",
            at_least(0.0), at_most(1e37));
    v.field("max_gradient_norm", max_gradient_norm,
            "Longer gradients are scaled down to this norm; 0: never.", at_least(0.0));
    v.field("clip", clip, "By a gradient's own norm, or by that predicted from earlier ones.",
            one_of({"norm", "predicted"}));
    v.field("skip_deviations", skip_deviations,
            "A step changes nothing if its gradient is longer than the mean of earlier ones by so "
            "many standard deviations; 0: all steps count. Common is 6.",
            at_least(0.0));
  }
};

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

class Optimizer {
 public:
  // `own`: what it updates; empty: all.
  Optimizer(Ops& ops, const Parameters& parameters, const OptimizerOptions& options,
            std::vector<SlabRange> own = {});

  // The squared norm of the own gradient. It is NaN or infinite if a gradient is.
  // The same holds if `earlier` was, that of the step before (optional). Both are f64 [1].
  void squared_norm(Ops& ops, const Tensor& sum, const Tensor& earlier = {});
  // The factor of this step's gradient, once a step: clip=predicted learns from each. Both f64 [1].
  void clip(Ops& ops, const Tensor& factor, const Tensor& squared_norm);
  void step(Ops& ops, double learning_rate, const Tensor& clip_factor);

  // For checkpoints: slabs as long as Parameters::elements, and the number of steps made.
  const std::vector<NamedTensor>& state() const { return state_; }
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  // The squared norm that clip=predicted expects of the next gradient, f64 [1]. 0: none is known.
  // clip=norm: empty.
  const Tensor& predicted() const { return predicted_; }

  std::size_t bytes() const { return buffer_.bytes(); }

 private:
  Part<UpdateRule> kind_;
  double max_norm_;
  std::vector<Tensor> gradients_;  // of own parameters
  Buffer buffer_;
  Tensor predicted_;
  std::vector<NamedTensor> state_;
  std::vector<Update> updates_;  // of own parameters
  std::int64_t steps_ = 0;
};

}  // namespace vcas
