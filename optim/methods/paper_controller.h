// The controller of the paper (its Algorithm 1): ratios walk towards the budget by signs.
#pragma once

#include "optim/methods/controller.h"

namespace vcas {

// Means over the batches of a probe. Variances are those of the weights of sampled linears.
struct ProbeResult {
  double v_s = 0;                  // of the stochastic gradient, all linears together
  double v_act = 0;                // added by SampleA, all linears together
  std::vector<double> v_w;         // [linear] added by SampleW
  std::vector<double> v_s_weight;  // [linear] of the stochastic gradient
  std::vector<std::vector<std::vector<double>>> item_norm;  // [batch][gate][item], exact passes
};

class PaperController final : public Controller {
 public:
  PaperController(const VcasOptions& options, const ControlledModel& model,
                  std::int64_t total_steps);

  double s() const { return s_; }  // share of the gradient norm that SampleA keeps
  bool adapts() const override { return true; }
  bool probe_due(std::int64_t step) const override { return step % update_every_ == 0; }
  int probe_passes() const override { return options_.repeats; }
  std::string update(const std::vector<MeasuredBatch>& probe) override;
  [[nodiscard]] std::string update(const ProbeResult& probe);
  nlohmann::ordered_json report() const override;
  nlohmann::ordered_json measured() const override;
  std::string progress() const override;
  nlohmann::json to_json() const override;
  void from_json(const nlohmann::json& state) override;

 private:
  void update_act_ratio();
  std::string update_weight_ratio();

  std::int64_t update_every_;
  double s_ = 1;
  ProbeResult last_;
};

}  // namespace vcas
