// Adam (Kingma and Ba 2015) and AdamW (Loshchilov and Hutter 2019).
#include "optim/optimizer.h"

namespace vcas {

namespace {

template <bool decoupled>
struct AdamRule final : UpdateRule {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;

  void fields(Setting& v) {
    v.field("beta1", beta1, "Decay of Adam's first moment.", at_least(0.0), below(1.0));
    // Below a half the step would lose small squares beside the moment of earlier ones.
    v.field("beta2", beta2, "Decay of Adam's second moment.", at_least(0.5), below(1.0));
    v.field("eps", eps, "Added to the root of Adam's second moment.", at_least(1e-37),
            at_most(1e37));
  }

  std::string summary() const override {
    return decoupled ? "weight decay apart from the gradient" : "weight decay within the gradient";
  }
  std::vector<std::string> state() const override { return {"first_moment", "second_moment"}; }

  void step(Ops& ops, const Update& update) const override {
    ops.run(AdamStep{.param = update.param,
                     .rounded = update.rounded,
                     .first_moment = update.state[0],
                     .second_moment = update.state[1],
                     .grad = update.grad,
                     .clip_factor = update.clip_factor,
                     .learning_rate = update.learning_rate,
                     .beta1 = beta1,
                     .beta2 = beta2,
                     .eps = eps,
                     .weight_decay = update.weight_decay,
                     .decayed = update.decayed,
                     .step = update.step,
                     .decoupled = decoupled});
  }
};

using Adam = AdamRule<false>;
using AdamW = AdamRule<true>;
VCAS_REGISTER_PART(UpdateRule, "adam", Adam);
VCAS_REGISTER_PART(UpdateRule, "adamw", AdamW);

}  // namespace

}  // namespace vcas
