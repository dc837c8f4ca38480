// SampleF: keeps a sample of the items of a step before its forward (docs/sampling.md).
#pragma once

#include "core/config.h"
#include "optim/methods/item_memory.h"
#include "optim/methods/norm_forecast.h"

namespace vcas {

struct ForwardOptions {
  bool forward = false;
  double forward_ratio = 0;
  double forward_floor = 0.05;

  void fields(Setting& v) {
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
  std::span<const RowSets> at_gate(Exec& exec, const GateSite& site, Gradient& gradient,
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

// The memory has a mean of each item's gradient norms, in which the newest counts 0.7.
// An item that was never seen is kept. So the first epoch drops nothing.
// f_i is the norm that items of such a mean have now (NormForecast).
// The others are drawn systematically, with probabilities in proportion to
//
//     ((1 - floor) f_i + floor * (mean f of the step)) / sqrt(rows of the item)
//
// that sum to ratio * their number, rounded up. A kept item has the weight 1/p.
class ForwardSample final : public ItemMemory {
 public:
  // Throws Error(kBadConfig) for a model, batch or data that no items can be left out of.
  // Steps on which something is measured need all items.
  ForwardSample(const Training& training, const ForwardOptions& options, NeedsAll needs_all);

  // Holds for the steps that are chosen from now on. 1 keeps all.
  void set_ratio(double ratio) { ratio_ = ratio; }
  double ratio() const { return ratio_; }

  // These do their part of Method's functions of the same names. `inner`: null or other hooks.
  BackwardHooks* hooks(BackwardHooks* inner);
  void end_pass(const Batch& batch, std::int64_t first, std::int64_t items);
  nlohmann::json state() const override;
  void restore(const nlohmann::json& state) override;
  std::size_t bytes() const override { return ItemMemory::bytes() + norms_.bytes(); }

  // [item], negative for one that was not seen before.
  struct Forecast {
    std::vector<double> norm;   // f_i
    std::vector<double> score;  // what a draw before this step would rank it by
  };
  Forecast forecast(std::span<const std::int64_t> items, std::span<const double> rows) const;

  // The share of the last step's items that it kept.
  double step_share() const { return step_share_; }

 private:
  ItemChoice draw(std::int64_t step, std::span<const std::int64_t> items,
                  std::span<const std::int64_t> rows) override;
  // docs/decisions/0007-forward-draw.md
  float renewed(float known, float norm, float weight) override;

  std::int64_t step_items_;  // on all ranks
  double floor_, ratio_;
  NormForecast forecast_;
  Tensor pass_norm_;  // S [items of a pass]
  Buffer norms_;      // that memory
  ItemNormReader reader_;
  double step_share_ = 1;
};

}  // namespace vcas
