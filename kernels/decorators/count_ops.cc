#include "kernels/decorators/count_ops.h"

#include <chrono>

#include "kernels/op_cost.h"

namespace vcas {

std::string_view phase_name(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kProbe:
      return "probe";
    case Phase::kOptimizer:
      return "optimizer";
    case Phase::kEvaluation:
      return "evaluation";
  }
  return "?";
}

CountOps::CountOps(std::unique_ptr<Ops> inner) : ForwardingOps(std::move(inner)) {
  CountOps::enter("");
}

void CountOps::copy_to_host(void* host, const void* device, std::size_t bytes) {
  if (bytes > 0) ++waits_;
  inner_->copy_to_host(host, device, bytes);
}

void CountOps::enter(const std::string& place) {
  const auto found = index_.find(place);
  if (found != index_.end()) {
    current_ = found->second;
  } else {
    current_ = &places_.emplace_back(Place{place, {}});
    index_.emplace(current_->name, current_);
  }
  inner_->enter(place);
}

// A place runs a handful of operations, so a linear search is the fastest. Each kName is one
// pointer.
CostTally& CountOps::tally(const char* op, Phase phase) {
  for (CostTally& tally : current_->tallies)
    if (tally.op == op && tally.phase == phase) return tally;
  return current_->tallies.emplace_back(CostTally{phase, op});
}

template <class Args>
void CountOps::count(const Args& args) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = timing_ ? Clock::now() : Clock::time_point{};
  inner_->run(args);
  constexpr bool kProbeOnly = std::is_same_v<Args, LinearWeightBlock>;
  CostTally& sum = tally(Args::kName, kProbeOnly ? Phase::kProbe : phase_);
  if (timing_) sum.seconds += std::chrono::duration<double>(Clock::now() - start).count();
  const Cost cost = op_cost(args);
  ++sum.calls;
  sum.flops += cost.flops;
  sum.bytes += cost.bytes;
  sum.launches += cost.launches;
}

#define VCAS_OP(Args) \
  void CountOps::run(const Args& args) { count(args); }
VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

double CountOps::flops(Phase phase) const {
  double sum = 0;
  for (const Place& place : places_)
    for (const CostTally& tally : place.tallies)
      if (tally.phase == phase) sum += tally.flops;
  return sum;
}

std::vector<CostRow> CountOps::rows() const {
  std::vector<CostRow> rows;
  for (const Place& place : places_)
    for (const CostTally& tally : place.tallies) rows.push_back({tally, place.name});
  return rows;
}

void CountOps::reset() {
  for (Place& place : places_) place.tallies.clear();
  waits_ = 0;
}

}  // namespace vcas
