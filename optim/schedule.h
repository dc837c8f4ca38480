// The learning rate as a function of the step.
#pragma once

#include <cstdint>

#include "core/part.h"

namespace vcas {

// A kind of schedule: its settings and its curve, in one source file.
class Decay {
 public:
  virtual ~Decay() = default;
  virtual std::string summary() const = 0;  // for the help of schedule.kind
  // The share of the peak after the warm-up, from 0. `left` falls from 1 to 0, its value at the
  // end.
  virtual double share(double left) const = 0;
};

struct ScheduleOptions {
  Part<Decay> kind{"linear", "How the learning rate falls after warm-up.", "kind"};
  double learning_rate = 1e-3;
  Duration warmup_steps = 0;
  double warmup_ratio = 0;

  void fields(Setting& v) {
    kind.fields(v);
    v.field("learning_rate", learning_rate, "Peak learning rate.", above(0.0), at_most(1e37));
    v.field("warmup_steps", warmup_steps, "Steps in which the learning rate rises from 0.",
            at_least(0));
    v.field("warmup_ratio", warmup_ratio,
            "Share of all steps in which the learning rate rises from 0.", between(0.0, 1.0));
  }
  void validate(ConfigErrors& errors) const;
};

class Schedule {
 public:
  Schedule(const ScheduleOptions& options, std::int64_t total_steps);

  // The rate of a step, counted from 0: 0 at the first step of a warm-up, the peak at the first
  // step after it.
  double learning_rate(std::int64_t step) const;
  std::int64_t warmup() const { return warmup_; }  // steps

 private:
  Part<Decay> kind_;
  double peak_;
  std::int64_t warmup_, total_;
};

}  // namespace vcas
