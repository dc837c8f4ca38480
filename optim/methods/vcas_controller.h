// The controller of VCAS: keep ratios from measured variances. Pure arithmetic, in the paper's
// letters (arXiv 2402.17227, section 5).
//
//   s      share of the gradient norm that SampleA keeps, one number for the network
//   rho_l  keep ratio of items at gate l (SampleA), a share of the whole batch
//   nu_k   keep ratio of rows in the weight gradient of linear k (SampleW)
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/config.h"

namespace vcas {

struct VcasOptions {
  double tau_act = 0.025, tau_w = 0.025;
  double s_step = 0.01;             // alpha
  double weight_multiplier = 0.95;  // beta
  double weight_ratio_min = 0.001;  // nu_min
  int repeats = 2;                  // M
  Duration update_every = 0;        // F
  double ratio_smoothing = 0;
  std::string probe = "in_place";
  double probe_fraction = 0.01;
  std::string selection = "systematic";
  std::vector<double> act_ratio, weight_ratio;

  // Whether ratios were given: they stay, and no probes run.
  bool pinned() const { return !act_ratio.empty() || !weight_ratio.empty(); }
  // Whether probes in place, whose steps are exact, would leave no step to sample.
  bool probes_too_often(std::int64_t every) const {
    return probe == "in_place" && every != 0 && every <= repeats;
  }

  template <class Visitor>
  void fields(Visitor& v) {
    v.field("tau_act", tau_act,
            "Variance that sampling items may add, over the variance of the gradient itself.",
            at_least(0.0));
    v.field("tau_w", tau_w,
            "Variance that sampling rows may add to a weight gradient, over its own variance.",
            at_least(0.0));
    v.field("s_step", s_step, "Change of the kept share of gradient norm at a probe.",
            between(0.0, 1.0));
    v.field("weight_multiplier", weight_multiplier,
            "Factor of a weight ratio at a probe, down by it or up by its inverse.", above(0.0),
            at_most(1.0));
    v.field("weight_ratio_min", weight_ratio_min, "Lowest weight ratio that probes may set.",
            above(0.0), at_most(1.0));
    // 31: what the random numbers' addresses hold (core/philox.h).
    v.field("repeats", repeats, "Batches of a probe, and sampled passes for each of them.",
            between(2, 31));
    v.field("update_every", update_every,
            "Steps from probe to probe; 0: a fiftieth of the run, at most 500.", at_least(0));
    v.field("ratio_smoothing", ratio_smoothing,
            "Share of the old item ratios that a probe leaves in the new ones.", at_least(0.0),
            below(1.0));
    v.field("probe", probe,
            "in_place: probes measure on batches that are trained on; separate: on extra batches.",
            one_of({"in_place", "separate"}));
    v.field("probe_fraction", probe_fraction,
            "Share of the entries of a weight gradient that probes measure.", above(0.0),
            at_most(1.0));
    v.field("selection", selection,
            "systematic: a fixed number of rows, one random number for all; bernoulli: "
            "independent.",
            one_of({"systematic", "bernoulli"}));
    v.field("act_ratio", act_ratio,
            "Fixed item ratios, input to output, instead of probes; one number stands for all.",
            above(0.0), at_most(1.0));
    v.field("weight_ratio", weight_ratio,
            "Fixed weight ratios instead of probes; one number stands for all.", above(0.0),
            at_most(1.0));
  }
  void validate(ConfigErrors& errors) const;
};

// What one probe measured. Variances are those of the weights of sampled linears.
struct ProbeResult {
  double v_s = 0;                  // of the stochastic gradient, all linears together
  double v_act = 0;                // added by SampleA, all linears together
  std::vector<double> v_w;         // [linear] added by SampleW
  std::vector<double> v_s_weight;  // [linear] of the stochastic gradient
  std::vector<std::vector<std::vector<double>>> item_norm;  // [batch][gate][item], exact passes
};

// The smallest share of items whose gradient norms sum to s of the whole. At least one item.
// 1 for s = 1: exact training, also if this batch has zero norms.
// 1 if the norms sum to nothing that could be ranked.
double top_mass(double s, std::vector<double> norms);

class VcasController {
 public:
  // Throws Error(kBadConfig) when fixed ratios do not fit the model.
  VcasController(const VcasOptions& options, int gates, int linears, std::int64_t total_steps);

  double s() const { return s_; }
  const std::vector<double>& act_ratio() const { return act_ratio_; }        // rho [gate]
  const std::vector<double>& weight_ratio() const { return weight_ratio_; }  // nu [linear]
  std::int64_t probes() const { return probes_; }
  std::int64_t update_every() const { return update_every_; }
  // Whether probes change the ratios: they are not pinned.
  bool adapts() const { return adapts_; }

  // Whether a probe starts at this step, counted from 0.
  bool probe_due(std::int64_t step) const { return adapts_ && step % update_every_ == 0; }

  // Sets the ratios from a probe. Returns, for the log, which of them it had to keep and why.
  // Empty if it set all.
  [[nodiscard]] std::string update(const ProbeResult& probe);

  // Bit-exact. A controller that does not adapt has null: its options give its ratios.
  // Reading changes nothing if either side does not adapt.
  // Throws Error(kBadData) for a state of another model.
  nlohmann::json to_json() const;
  void from_json(const nlohmann::json& state);

 private:
  void update_act_ratio(const std::vector<std::vector<std::vector<double>>>& item_norm);
  std::string update_weight_ratio(const ProbeResult& probe);

  VcasOptions options_;
  bool adapts_;
  std::int64_t update_every_;
  double s_ = 1;
  std::vector<double> act_ratio_, weight_ratio_;
  std::int64_t probes_ = 0;
};

}  // namespace vcas
