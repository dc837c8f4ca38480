// Counts what a run costs, by phase, place and operation (kernels/op_cost.h).
// Probes look on in backwards that train. These parts of them count as probe always:
// blocks of weight gradients, and what runs at a place ".../probe".
#pragma once

#include <deque>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/decorators/forwarding_ops.h"
#include "kernels/op_cost.h"

namespace vcas {

std::string_view phase_name(Phase phase);

struct CostTally {
  Phase phase = Phase::kForward;
  const char* op = "";
  Family family = Family::kRest;
  std::int64_t calls = 0;
  double flops = 0;
  double bytes = 0;
  std::int64_t launches = 0;
  double seconds = 0;  // of the calls made while timing was on; always of the looks of probes
};

struct CostRow : CostTally {
  std::string place;
};

class CountOps final : public ForwardingOps {
 public:
  explicit CountOps(std::unique_ptr<Ops> inner);

  void copy_to_host(void* host, const void* device, std::size_t bytes) override;
  std::unique_ptr<Mailbox> make_mailbox(std::size_t bytes) override;
  void enter_phase(Phase phase) override;
  void enter(const std::string& place) override;
  // Counts a repetition as the calls that it repeats, in the phases that were set then.
  void repeat(std::unique_ptr<Recording>& recording, const std::function<void()>& body) override;
  std::int64_t beside(const std::function<void()>& body) override;
#define VCAS_OP(Args) void run(const Args& args) override;
  VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

  // Off at first. Times operations on the device. Passes are then not repeated, and
  // nothing runs beside.
  // The looks of probes are timed always, by the host's clock:
  // a training step would have taken so much less without them.
  void set_timing(bool timing) { timing_ = timing; }
  // Whether nothing runs beside, timing or not. Off at first.
  void set_one_branch(bool one_branch) { one_branch_ = one_branch; }

  double flops(Phase phase) const;
  // Looks of probes in other phases than their own.
  double look_seconds() const { return look_seconds_; }
  // How often the host waited until the device had nothing left to do.
  // These are the copies from it, and a receive with no operation called since its send.
  std::int64_t waits() const { return waits_; }
  // Places are in the order they were first entered. Their operations are in that of first use.
  // Waits for operations that are timed.
  std::vector<CostRow> rows();
  void reset();

 private:
  struct Place {
    std::string name;
    std::vector<CostTally> tallies;
  };

  struct Call {
    Place* place;
    const char* op;
    Family family;
    Phase phase;
    Cost cost;
  };
  class CountedMailbox;
  struct CountedRecording final : Recording {
    std::unique_ptr<Recording> inner;
    std::vector<Call> calls;
    Place* last_place = nullptr;
  };

  template <class Args>
  void count(const Args& args);
  static CostTally& tally_of(const Call& call);
  static CostTally& add(const Call& call);
  void add_seconds();

  std::deque<Place> places_;  // never moves its elements, which the index points at
  std::unordered_map<std::string_view, Place*> index_;
  Place* current_ = nullptr;
  std::vector<Call>* log_ = nullptr;  // of the body of `repeat` that runs
  std::vector<Call> timed_;           // with two marks each
  std::unique_ptr<Timeline> timeline_;
  std::int64_t waits_ = 0;
  std::int64_t calls_ = 0;  // operations and repetitions
  double look_seconds_ = 0;
  Phase phase_ = Phase::kForward;
  bool timing_ = false, one_branch_ = false;
};

}  // namespace vcas
