// Adam, AdamW and SGD over the slabs of all parameters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config.h"
#include "kernels/buffer.h"
#include "layers/parameters.h"

namespace vcas {

struct OptimizerOptions {
  std::string name = "adamw";
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double momentum = 0.9;
  double weight_decay = 0;
  double max_gradient_norm = 0;

  template <class Visitor>
  void fields(Visitor& v) {
    v.field("name", name,
            "adamw (weight decay apart from the gradient), adam (decay in the gradient) or sgd.",
            one_of({"adam", "adamw", "sgd"}));
    v.field("beta1", beta1, "Decay of Adam's first moment.", at_least(0.0), below(1.0));
    v.field("beta2", beta2, "Decay of Adam's second moment.", at_least(0.0), below(1.0));
    v.field("eps", eps, "Added to the root of Adam's second moment.", above(0.0));
    v.field("momentum", momentum, "Momentum of sgd.", at_least(0.0), below(1.0));
    v.field("weight_decay", weight_decay, "Weight decay, not on biases and norms.", at_least(0.0));
    v.field("max_gradient_norm", max_gradient_norm,
            "Longer gradients are scaled down to this norm; 0: never.", at_least(0.0));
  }
};

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

class Optimizer {
 public:
  Optimizer(Ops& ops, const Parameters& parameters, const OptimizerOptions& options);

  // The squared norm of the gradient of all parameters. It is NaN or infinite if a gradient is.
  // The same holds if `earlier` was, that of the step before (optional). Both are f64 [1].
  void squared_norm(Ops& ops, const Tensor& sum, const Tensor& earlier = {});
  // Changes nothing where the squared norm is not finite.
  void step(Ops& ops, double learning_rate, const Tensor& squared_norm);

  // For checkpoints: slabs as long as the parameters' and the number of steps made.
  const std::vector<NamedTensor>& state() const { return state_; }
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

  std::size_t bytes() const { return buffer_.bytes(); }

 private:
  void step_range(Ops& ops, std::int64_t begin, std::int64_t end, double learning_rate,
                  double weight_decay, const Tensor& squared_norm);

  OptimizerOptions options_;
  Tensor values_, rounded_, gradients_;  // rounded_: of bf16 only
  std::int64_t decayed_;
  Buffer buffer_;
  std::vector<NamedTensor> state_;  // moments, or the momentum
  std::int64_t steps_ = 0;
};

}  // namespace vcas
