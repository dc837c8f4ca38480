#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace vcas {

void ScheduleOptions::validate(ConfigErrors& errors) const {
  if (warmup_steps.amount() != 0 && warmup_ratio != 0)
    errors.add({"warmup_ratio", "warmup_steps"}, "and warmup_steps say the same: give one of them");
}

Schedule::Schedule(const ScheduleOptions& options, std::int64_t total_steps)
    : kind_(options.kind == "constant" ? Kind::kConstant
            : options.kind == "linear" ? Kind::kLinear
                                       : Kind::kCosine),
      peak_(options.learning_rate),
      warmup_(std::max(options.warmup_steps.steps(),
                       static_cast<std::int64_t>(
                           std::ceil(options.warmup_ratio * static_cast<double>(total_steps))))),
      total_(total_steps) {}

double Schedule::learning_rate(std::int64_t step) const {
  if (step < warmup_) return peak_ * static_cast<double>(step) / static_cast<double>(warmup_);
  if (kind_ == Kind::kConstant) return peak_;
  if (step >= total_) return 0;
  const double left = static_cast<double>(total_ - step) / static_cast<double>(total_ - warmup_);
  if (kind_ == Kind::kLinear) return peak_ * left;
  return peak_ * 0.5 * (1 - std::cos(std::numbers::pi * left));
}

}  // namespace vcas
