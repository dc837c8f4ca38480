// SampleF: keeps a sample of the items of a step before its forward (docs/sampling.md).
#pragma once

#include <deque>
#include <functional>
#include <map>

#include "core/config.h"
#include "kernels/buffer.h"
#include "optim/methods/method.h"

namespace vcas {

struct ForwardOptions {
  bool forward = false;
  double forward_ratio = 0;
  double forward_floor = 0.05;

  template <class Visitor>
  void fields(Visitor& v) {
    v.field("forward", forward,
            "Drop items before the forward too, by the gradient norms that they had before.");
    v.field(
        "forward_ratio", forward_ratio,
        "Fixed share of a step's items that the forward keeps; 0: the budget controller sets it.",
        at_least(0.0), at_most(1.0));
    v.field("forward_floor", forward_floor,
            "Share of the mean norm in the score of each item: it bounds the weights.", above(0.0),
            at_most(1.0));
  }
};

// Passes everything on to other hooks, and reads the gradient norms of items at the top gate.
class ItemNormReader final : public BackwardHooks {
 public:
  // `norm`: S [items of a pass].
  void set(int top_gate, const Tensor& norm) { top_gate_ = top_gate, norm_ = norm; }
  // Null: the exact backward.
  void wrap(BackwardHooks* inner) { inner_ = inner ? inner : &exact_; }

  void begin(Exec& exec) override { inner_->begin(exec); }
  bool reads_norms() const override { return inner_->reads_norms(); }
  const RowSets& at_gate(Exec& exec, const GateSite& site, Gradient& gradient,
                         const RowSets& rows) override;
  void weight_gradient(Exec& exec, const WeightUse& use) override {
    inner_->weight_gradient(exec, use);
  }
  void flush(Exec& exec) override { inner_->flush(exec); }
  bool waits() const override { return inner_->waits(); }

 private:
  BackwardHooks exact_;
  BackwardHooks* inner_ = &exact_;
  int top_gate_ = 0;
  Tensor norm_;
};

// The memory has a mean of each item's gradient norms, without the item's own weight and 1/batch.
// The newest counts 0.7 in it.
// An item that was never seen is kept. So the first epoch drops nothing.
// The others are drawn systematically, with probabilities in proportion to
//
//     ((1 - floor) m_i + floor * (mean m of the step)) / sqrt(rows of the item)
//
// that sum to ratio * their number, rounded up. A kept item has the weight 1/p.
// When step t begins, or its batch is taken, the memory has the norms of the steps up to t - 2.
class ForwardSample final : public ItemChooser {
 public:
  // Whether a step must keep all items: something is measured on it.
  using NeedsAll = std::function<bool(std::int64_t step)>;

  // Throws Error(kBadConfig) for a model, batch or data that no items can be left out of.
  ForwardSample(const Training& training, const ForwardOptions& options, NeedsAll needs_all);

  // Holds for the steps that are chosen from now on. 1 keeps all.
  void set_ratio(double ratio) { ratio_ = ratio; }
  double ratio() const { return ratio_; }
  // Whether the run ends before an item comes again.
  bool is_one_epoch() const;

  ItemChoice choose(std::int64_t step, std::span<const std::int64_t> items,
                    std::span<const std::int64_t> rows) override;

  // These do their part of Method's functions of the same names. `inner`: null or other hooks.
  void begin_step(std::int64_t step);
  BackwardHooks* hooks(BackwardHooks* inner);
  void end_pass(const Batch& batch, std::int64_t first, std::int64_t items);
  void end_step();
  std::span<float> item_memory() { return memory_; }
  // Without the memory.
  nlohmann::json state() const;
  void restore(const nlohmann::json& state);
  std::size_t bytes() const { return norms_.bytes(); }

  // What a draw before this step would rank its items by; negative: an item not seen before.
  std::vector<double> scores(std::span<const std::int64_t> items,
                             std::span<const double> rows) const;

  // The share of the last step's items that it kept.
  double step_share() const { return step_share_; }

 private:
  // A choice whose step has not begun: a batch is made ahead of its step.
  struct Pending {
    std::vector<std::int64_t> items;
    ItemChoice choice;
  };
  // Items of a step whose norms the memory does not have yet.
  struct Seen {
    std::int64_t step = 0;
    std::int64_t candidates = 0;  // the dropped ones too
    std::vector<std::int64_t> items;
    std::vector<float> weights;  // empty: all 1
    std::vector<float> norms;    // from a checkpoint; empty: they are on their way
  };

  static constexpr std::int64_t kSlots = 2;  // steps whose norms are on their way

  double mean_norm(std::span<const std::int64_t> items) const;
  double score_of(std::int64_t item, double rows, double mean) const;
  void check_items(std::span<const std::int64_t> items) const;
  ItemChoice draw(std::int64_t step, std::span<const std::int64_t> items,
                  std::span<const std::int64_t> rows);
  void remember(std::int64_t last_step);
  std::vector<float> norms_of(const Seen& seen) const;
  Tensor slot(std::int64_t step, std::int64_t first, std::int64_t items) const;

  Ops& ops_;
  std::unique_ptr<Ops> host_;  // draws
  std::uint64_t seed_;
  std::int64_t batch_, total_steps_;
  double floor_, ratio_;
  NeedsAll needs_all_;
  std::vector<float> memory_;  // [items of the data]; kNeverSeen
  Buffer norms_;               // of a pass, then of the steps on their way
  Tensor pass_norm_;           // S [items of a pass]
  Tensor step_norms_;          // S [kSlots * items of a step]
  std::unique_ptr<Mailbox> mailboxes_[kSlots];
  ItemNormReader reader_;
  std::map<std::int64_t, Pending> pending_;  // by step
  std::deque<Seen> seen_;                    // in the order of steps
  std::int64_t begun_ = 0;                   // steps
  double step_share_ = 1;
};

}  // namespace vcas
