// Methods that train on a choice of each step's items (docs/methods.md).
#pragma once

#include "optim/methods/item_choice.h"
#include "optim/methods/sample_gate.h"

namespace vcas {

// Counts what is kept, for logs and costs.
class ItemSelection : public Method {
 public:
  void begin_step(std::int64_t) override { kept_ = items_ = 0; }
  bool samples() const override { return true; }
  std::string progress() const override;

 protected:
  void count(std::int64_t kept, std::int64_t items) { kept_ += kept, items_ += items; }
  // The share of the last step's items that it kept.
  double share() const;

 private:
  std::int64_t kept_ = 0, items_ = 0;
};

// Items are left out before the forward. All else is exact.
class ForwardSelection : public ItemSelection {
 public:
  PassKind next(std::int64_t) const override { return PassKind::kExact; }
  void end_pass(const Batch& batch, std::int64_t first, std::int64_t items) override;
  void add_cost(FormulaFlops& formula) const override { formula.add_exact_step(share()); }
};

// The forward is whole. Items are dropped at the logits, so the head too works on kept items.
// The host chooses, and waits for what it chooses by.
class BackwardSelection : public ItemSelection, protected BackwardHooks {
 public:
  // MethodKind::prepare of such methods.
  static void add_gate(Model& model) { model.graph.gate(model.logits); }

  // `type` is the kind of method, for messages.
  // Throws Error(kBadConfig) for a model or a pass without items to choose among.
  BackwardSelection(const Training& training, const std::string& type);

  PassKind next(std::int64_t) const override { return PassKind::kSampled; }
  BackwardHooks* hooks(PassKind) override { return this; }
  bool repeats(PassKind) const override { return false; }
  void add_cost(FormulaFlops& formula) const override;
  std::size_t bytes() const override { return gate_.bytes() + buffer_.bytes(); }

 protected:
  // Chooses among the items of a pass, maybe none. In an exact one it is `all_items`.
  // A weight multiplies the item's gradient.
  virtual ItemChoice choose(Exec& exec, const GateSite& site, const Gradient& gradient,
                            const RowSets& rows) = 0;

  std::vector<float> losses(Exec& exec) const;
  // Norms of the gradients of the items' losses at the logits, times the scale of the loss.
  std::vector<float> gradient_norms(Exec& exec, const GateSite& site, const Gradient& gradient,
                                    const RowSets& rows) const;
  // For draws in this pass.
  static RandomKey key(Exec& exec, const GateSite& site);

 private:
  std::span<const RowSets> at_gate(Exec& exec, const GateSite& site, Gradient& gradient,
                                   const RowSets& rows) final;

  Model& model_;
  SampleGate gate_;
  Tensor norm_;    // f32 [items of a pass]
  Buffer buffer_;  // that memory
};

}  // namespace vcas
