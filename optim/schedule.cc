#include "optim/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/ops/sampling.h"

namespace vcas {
namespace {

struct ConstantRate final : Decay {
  std::string summary() const override { return "never"; }
  double share(double) const override { return 1; }
};
VCAS_REGISTER_PART(Decay, "constant", ConstantRate);

struct LinearDecay final : Decay {
  std::string summary() const override { return "straight to 0"; }
  double share(double left) const override { return left; }
};
VCAS_REGISTER_PART(Decay, "linear", LinearDecay);

struct CosineDecay final : Decay {
  std::string summary() const override { return "along half a cosine"; }
  double share(double left) const override { return 0.5 * (1 - std::cos(std::numbers::pi * left)); }
};
VCAS_REGISTER_PART(Decay, "cosine", CosineDecay);

struct StepDecay final : Decay {
  std::vector<double> milestones = {0.5, 0.75};
  double factor = 0.1;

  void fields(Setting& v) {
    v.field("milestones", milestones,
            "Shares of the steps after warm-up, at which the learning rate falls.", above(0.0),
            below(1.0));
    v.field("factor", factor, "What each milestone multiplies the learning rate by.", above(0.0),
            below(1.0));
  }
  std::string summary() const override { return "by a factor at some points"; }
  double share(double left) const override {
    constexpr double kRounding = 1e-12;  // of 1 - milestone
    const auto passed = std::ranges::count_if(
        milestones, [&](double milestone) { return left <= 1 - milestone + kRounding; });
    return std::pow(factor, passed);
  }
};
VCAS_REGISTER_PART(Decay, "step", StepDecay);

}  // namespace

void ScheduleOptions::validate(ConfigErrors& errors) const {
  if (warmup_steps.amount() != 0 && warmup_ratio != 0)
    errors.add({"warmup_ratio", "warmup_steps"}, "and warmup_steps say the same: give one of them");
}

Schedule::Schedule(const ScheduleOptions& options, std::int64_t total_steps)
    : kind_(options.kind),
      peak_(options.learning_rate),
      warmup_(std::max(options.warmup_steps.steps(),
                       static_cast<std::int64_t>(
                           whole_budget(options.warmup_ratio * static_cast<double>(total_steps))))),
      total_(total_steps) {
  *kind_;  // throws for an unknown one before the first step
}

double Schedule::learning_rate(std::int64_t step) const {
  if (step < warmup_) return peak_ * static_cast<double>(step) / static_cast<double>(warmup_);
  const double left =
      step < total_ ? static_cast<double>(total_ - step) / static_cast<double>(total_ - warmup_)
                    : 0;
  const double share = kind_->share(left);
  if (!(std::isfinite(share) && share >= 0))
    throw Error(
        ExitCode::kBadConfig,
        fmt::format("schedule.kind \"{}\" has the share {} at step {}", kind_.type, share, step),
        "Decay::share returns a number from 0, mostly up to 1 (optim/schedule.h)");
  return peak_ * share;
}

}  // namespace vcas
