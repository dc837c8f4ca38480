// Losses of forwards. They stay on the device until the host reads those of a whole step.
// The device may be at the next step then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "models/model.h"

namespace vcas {

// Error(kDiverged), with what to try.
Error diverged(const std::string& message);
// Throws it, naming `what` and `where`, when a loss is not finite. `squared_norm`: of the gradient.
void check_loss(double loss, double squared_norm, const std::string& what,
                const std::string& where = {});

// Throws Error(kBadConfig) while the weights of `model` are not set.
void check_weights_set(const Ops& ops, const Model& model);

class LossQueue {
 public:
  // A step has at most `forwards` forwards of `model`. Its graph is finished in `ops`.
  // Throws Error(kBadConfig) for a model in f64, and for a loss or logits that are not what Model
  // says.
  LossQueue(Model& model, Ops& ops, std::int64_t forwards);

  // A step begins. What a step that failed has added is forgotten.
  void begin();
  // Takes the losses and hits of the forward that ran last. The next one overwrites them.
  // `weights`: of the hits; empty: all 1. Losses have theirs already.
  void add(std::span<const float> weights = {});
  // Numbers of the step's gradient, f64 [1], that are read with the losses.
  // `last_squared_norm`: of the step before.
  Tensor squared_norm() const { return number(filling_, 0); }
  Tensor last_squared_norm() const { return number((filling_ + kSteps - 1) % kSteps, 0); }
  Tensor clip_factor() const { return number(filling_, 1); }
  // What has been added since `begin` is a step's.
  // At most kSteps may wait to be received.
  void send();

  struct Sums {
    double loss = 0;
    double correct = 0;
    double squared_norm = 0, clip_factor = 0;
  };
  bool full() const { return sent_ == kSteps; }
  // `arrived`: the oldest unread step is ready. `receive`: returns it, waiting if needed.
  bool arrived() const;
  Sums receive();

  std::size_t bytes() const { return buffer_.bytes(); }

 private:
  static constexpr std::size_t kSteps = 2, kNumberBytes = 2 * sizeof(double);
  struct Step {
    std::unique_ptr<Mailbox> mailbox;
    std::size_t bytes = kNumberBytes;
    std::vector<std::int64_t> terms;  // of each forward
    std::vector<float> weights;       // of all terms; empty: all 1
  };
  std::size_t first_sent() const { return (filling_ + kSteps - sent_) % kSteps; }
  Tensor number(std::size_t step, std::size_t i) const {
    return buffer_.at(step * step_bytes_ + i * sizeof(double), DType::kF64, {1});
  }

  Model& model_;
  Ops& ops_;
  std::size_t step_bytes_;
  Buffer buffer_;  // of each step the numbers, then losses and hits of each forward
  Step steps_[kSteps];
  std::size_t filling_ = 0, sent_ = 0;
};

}  // namespace vcas
