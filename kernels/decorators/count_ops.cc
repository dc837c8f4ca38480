#include "kernels/decorators/count_ops.h"

#include <algorithm>

#include "core/progress.h"

namespace vcas {

namespace {
constexpr std::size_t kMostTimed = 4096;  // calls that wait for their seconds
}

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

CountOps::CountOps(std::unique_ptr<Ops> inner)
    : ForwardingOps(std::move(inner)), timeline_(inner_->make_timeline()) {
  CountOps::enter("");
}

void CountOps::copy_to_host(void* host, const void* device, std::size_t bytes) {
  if (bytes > 0) ++waits_;
  inner_->copy_to_host(host, device, bytes);
}

class CountOps::CountedMailbox final : public Mailbox {
 public:
  CountedMailbox(CountOps& ops, std::unique_ptr<Mailbox> inner)
      : ops_(ops), inner_(std::move(inner)) {}
  void send(const void* device, std::size_t bytes) override {
    calls_ = ops_.calls_;
    inner_->send(device, bytes);
  }
  bool arrived() override { return inner_->arrived(); }
  const std::byte* receive() override {
    if (calls_ == ops_.calls_) ++ops_.waits_;
    return inner_->receive();
  }

 private:
  CountOps& ops_;
  std::unique_ptr<Mailbox> inner_;
  std::int64_t calls_ = 0;  // when it was sent
};

std::unique_ptr<Mailbox> CountOps::make_mailbox(std::size_t bytes) {
  return std::make_unique<CountedMailbox>(*this, inner_->make_mailbox(bytes));
}

void CountOps::enter_phase(Phase phase) {
  phase_ = phase;
  inner_->enter_phase(phase);
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

void CountOps::repeat(std::unique_ptr<Recording>& recording, const std::function<void()>& body) {
  if (timing_) return body();
  if (!recording) recording = std::make_unique<CountedRecording>();
  auto& counted = static_cast<CountedRecording&>(*recording);
  bool called = false;
  const auto logged = [&] {
    called = true;
    counted.calls.clear();
    log_ = &counted.calls;
    try {
      body();
    } catch (...) {
      log_ = nullptr;
      throw;
    }
    log_ = nullptr;
    counted.last_place = current_;
  };
  inner_->repeat(counted.inner, std::ref(logged));
  ++calls_;
  if (called) return;
  for (const Call& call : counted.calls) add(call);
  current_ = counted.last_place;
}

std::int64_t CountOps::beside(const std::function<void()>& body) {
  if (!timing_ && !one_branch_) return inner_->beside(body);
  body();
  return 0;
}

// A place runs a handful of operations, so a linear search is the fastest. Each kName is one
// pointer.
CostTally& CountOps::tally_of(const Call& call) {
  std::vector<CostTally>& tallies = call.place->tallies;
  const auto found = std::ranges::find_if(tallies, [&](const CostTally& tally) {
    return tally.op == call.op && tally.phase == call.phase;
  });
  if (found != tallies.end()) return *found;
  return tallies.emplace_back(CostTally{.phase = call.phase, .op = call.op, .family = call.family});
}

CostTally& CountOps::add(const Call& call) {
  CostTally& tally = tally_of(call);
  ++tally.calls;
  tally.flops += call.cost.flops;
  tally.bytes += call.cost.bytes;
  tally.launches += call.cost.launches;
  return tally;
}

template <class Args>
void CountOps::count(const Args& args) {
  const bool look = current_->name.ends_with("/probe");
  const Call call{current_, Args::kName, Args::kFamily, look ? Phase::kProbe : phase_,
                  op_cost(args)};
  const double start = look ? monotonic_seconds() : 0;
  if (timing_) timeline_->mark();
  inner_->run(args);
  ++calls_;
  CostTally& tally = add(call);
  if (log_) log_->push_back(call);
  if (timing_) {
    timeline_->mark();
    timed_.push_back(call);
    if (timed_.size() == kMostTimed) add_seconds();
  }
  if (!look) return;
  const double seconds = monotonic_seconds() - start;
  if (!timing_) tally.seconds += seconds;
  if (phase_ != Phase::kProbe) look_seconds_ += seconds;
}

void CountOps::add_seconds() {
  const std::vector<double> seconds = timeline_->take_seconds();
  for (std::size_t i = 0; i < timed_.size(); ++i) tally_of(timed_[i]).seconds += seconds[2 * i];
  timed_.clear();
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

std::vector<CostRow> CountOps::rows() {
  add_seconds();
  std::vector<CostRow> rows;
  for (const Place& place : places_)
    for (const CostTally& tally : place.tallies) rows.push_back({tally, place.name});
  return rows;
}

void CountOps::reset() {
  add_seconds();
  for (Place& place : places_) place.tallies.clear();
  waits_ = 0;
  look_seconds_ = 0;
}

}  // namespace vcas
