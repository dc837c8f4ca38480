// The controller that spends one budget of variance where it saves most (docs/sampling.md).
// One exact step gives all curves of variance against cost; the ratios are those of least cost.
#pragma once

#include "optim/methods/controller.h"
#include "optim/methods/variance_curves.h"

namespace vcas {

class BudgetController final : public Controller {
 public:
  BudgetController(const VcasOptions& options, const ControlledModel& model, std::uint64_t seed,
                   std::int64_t total_steps);

  bool adapts() const override { return true; }
  // At step 0, then 2, 4, 8 ... steps apart, up to update_every.
  bool probe_due(std::int64_t step) const override;
  // Every tenth probe is verified by Monte Carlo. Where a layer mixes items, each one is, by one
  // pass. That begins once ratios drop items.
  int probe_passes() const override;
  std::string update(const std::vector<MeasuredBatch>& probe) override;
  double forward_ratio() const override { return forward_ratio_; }
  nlohmann::ordered_json report() const override;
  nlohmann::ordered_json measured() const override;
  std::string progress() const override;
  nlohmann::json to_json() const override;
  void from_json(const nlohmann::json& state) override;

 private:
  // What a probe found at the ratios that were in force. Curves tell it. Where a layer mixes items,
  // a sampled pass measures V_act.
  struct Finding {
    double v_s = 0, v_f = 0, v_act = 0, v_w = 0;                    // all linears together
    double forward = 0, expected_forward = 0, act = 0, weight = 0;  // in the budget's unit
    std::vector<double> v_s_linear, v_w_linear;
    bool measured = false;  // a pass measured v_act and act
    // [gate], by that pass: act beyond K, and the share of items that was dropped. 0 where gates
    // stayed open for their echoes.
    std::vector<double> excess, dropped;
  };

  // Variance by Monte Carlo over that by the curves.
  double kappa() const { return predicted_ > 0 ? verified_ / predicted_ : 1; }
  std::vector<double> pooled_variance() const;  // V_s,k; 0 where it is not known
  std::vector<double> importance() const;
  void pool_variance(const std::vector<MeasuredBatch>& probe);
  void pool_cost(const MeasuredBatch& batch);
  void pool_row_factors(const std::vector<MeasuredBatch>& probe);
  // eta [linear] of the curves: as measured, but at least 1. What draws add less than Eq. 3 stays
  // unspent (docs/decisions/0012-drawn-rows.md).
  std::vector<double> planned_row_factor() const;
  // phi [gate]; 0 where no layer mixes items.
  std::vector<double> echo_variance() const;
  void pool_echoes();
  // Adds `share` of what was found on a batch.
  void find(const MeasuredBatch& batch, const VarianceCurves& curves,
            const std::vector<double>& importance, double share);
  void check_ranges() const;  // of what was read from a state
  // The mean over the batches of their optima.
  VarianceCurves::Optimum optimum(const std::vector<VarianceCurves>& curves, double budget) const;
  void correct_aim(double budget);
  void move_ratios(const VarianceCurves::Ratios& ratios);

  std::uint64_t seed_;
  std::int64_t update_every_;
  // [linear], pooled: the sum of z_r,k^2 over the rows, and V_s,k over it. A gradient grows many
  // times from probe to probe, and the sum with it. So it is pooled over fewer.
  std::vector<double> squares_, spread_;
  std::vector<double> row_factor_;  // eta [linear], measured and pooled
  double lambda_ = 1;               // the water level
  double forward_ratio_;
  double spent_ = 0;  // over what was aimed at, pooled
  std::int64_t spent_probes_ = 0;
  double aim_ = 1;                       // times the budget is what the optimum may spend
  double verified_ = 0, predicted_ = 0;  // variances by Monte Carlo and by curves: their sums
  std::int64_t verifications_ = 0;
  std::vector<double> excess_, dropped_;  // [gate]: excess over dropped, and dropped, pooled
  std::int64_t echo_probes_ = 0;
  std::int64_t timed_probes_ = 0;
  Finding last_;
};

}  // namespace vcas
