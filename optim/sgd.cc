// Stochastic gradient descent with momentum.
#include "optim/optimizer.h"

namespace vcas {

namespace {

struct Sgd final : UpdateRule {
  double momentum = 0.9;
  bool nesterov = false;

  void fields(Setting& v) {
    v.field("momentum", momentum, "Momentum of sgd.", at_least(0.0), below(1.0));
    v.field("nesterov", nesterov, "Nesterov's momentum: the gradient, then momentum once more.");
  }

  std::string summary() const override { return "gradients, or their momentum"; }
  std::vector<std::string> state() const override { return {"momentum"}; }

  std::vector<std::string> idle_settings() const override {
    if (!nesterov || momentum > 0) return {};
    return {"optimizer.nesterov has no effect: optimizer.momentum is 0"};
  }

  void step(Ops& ops, const Update& update) const override {
    ops.run(SgdStep{.param = update.param,
                    .rounded = update.rounded,
                    .momentum = update.state[0],
                    .grad = update.grad,
                    .clip_factor = update.clip_factor,
                    .learning_rate = update.learning_rate,
                    .mu = momentum,
                    .weight_decay = update.weight_decay,
                    .decayed = update.decayed,
                    .nesterov = nesterov});
  }
};

VCAS_REGISTER_PART(UpdateRule, "sgd", Sgd);

}  // namespace

}  // namespace vcas
