// What steers VCAS: keep ratios from measured variances. Pure arithmetic, in the paper's letters
// (arXiv 2402.17227, section 5).
//
//   rho_l  keep ratio of items at gate l (SampleA), a share of the whole batch
//   nu_k   keep ratio of rows in the weight gradient of linear k (SampleW)
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/config.h"
#include "optim/methods/item_threshold.h"

namespace vcas {

struct VcasOptions {
  std::string controller = "budget";
  std::string sample = "both";
  double tau_act = 0.025, tau_w = 0.025, tau_f = 0.025;
  std::string budget = "relative", cost = "flops";
  bool auto_exact = false;
  double s_step = 0.01;             // alpha
  double weight_multiplier = 0.95;  // beta
  double weight_ratio_min = 0.001;  // nu_min
  int repeats = 2;                  // M
  Duration update_every = 0;        // F
  double ratio_smoothing = 0;
  std::string probe = "in_place";
  double probe_fraction = 0.01;
  std::string selection = "systematic";
  std::string kept_items = "auto";
  std::vector<double> act_ratio, weight_ratio;
  int echo = 0;

  // Whether ratios were given: they stay, and no probes run.
  bool pinned() const { return !act_ratio.empty() || !weight_ratio.empty(); }
  bool follows_paper() const { return controller == "paper"; }
  bool times_cost() const { return !follows_paper() && cost == "time"; }
  bool samples_items() const { return sample != "rows"; }
  bool samples_rows() const { return sample != "items"; }
  // The budget of what is sampled in backwards.
  double tau() const { return (samples_items() ? tau_act : 0) + (samples_rows() ? tau_w : 0); }
  // Whether exact backwards of probes are timed.
  bool times_probes() const { return times_cost() || (auto_exact && !pinned()); }
  // Batches of a probe, each an exact step if in place.
  int probe_batches() const { return follows_paper() ? repeats : 1; }
  // F; where it is not set, the default of the controller.
  std::int64_t probe_interval(std::int64_t total_steps) const;
  // Whether probes in place, whose steps are exact, would leave no step to sample.
  bool probes_too_often(std::int64_t every) const {
    return probe == "in_place" && every != 0 && every <= probe_batches();
  }

  void fields(Setting& v) {
    v.field("controller", controller,
            "paper: ratios walk towards the budget; budget: the least cost within it, by curves.",
            one_of({"paper", "budget"}));
    v.field("sample", sample,
            "What probes let backwards drop: items, rows of weight gradients, or both.",
            one_of({"both", "items", "rows"}));
    v.field("tau_act", tau_act,
            "Variance that sampling items may add, over the variance of the gradient itself.",
            at_least(0.0));
    v.field("tau_w", tau_w,
            "Variance that sampling rows may add to a weight gradient, over its own variance.",
            at_least(0.0));
    v.field("tau_f", tau_f,
            "Variance that dropping items before the forward is expected to add (budget "
            "controller).",
            at_least(0.0));
    v.field("budget", budget,
            "What the sum of the taus bounds (budget controller). relative: the mean over linear "
            "layers, each by its own variance; absolute: that of all together.",
            one_of({"relative", "absolute"}));
    v.field("cost", cost,
            "What the budget controller saves: flops of linear layers, or time, which probes "
            "measure. A run by time cannot be repeated to the bit.",
            one_of({"flops", "time"}));
    v.field("auto_exact", auto_exact,
            "A gate or linear layer whose sampling is measured to take longer than what it saves "
            "goes exact. Such a run cannot be repeated to the bit.");
    v.field("s_step", s_step, "Change of the kept share of gradient norm at a probe (paper).",
            between(0.0, 1.0));
    v.field("weight_multiplier", weight_multiplier,
            "Factor of a weight ratio at a probe, down by it or up by its inverse (paper).",
            above(0.0), at_most(1.0));
    v.field("weight_ratio_min", weight_ratio_min, "Lowest weight ratio that probes may set.",
            above(0.0), at_most(1.0));
    // 31: what the random numbers' addresses hold (core/philox.h).
    v.field("repeats", repeats,
            "Sampled passes for each batch of a probe that has any; above BatchNorm the budget "
            "controller has one. The paper controller has as many batches too.",
            between(2, 31));
    v.field("update_every", update_every,
            "Steps from probe to probe, after 2, 4, 8 ... at first; 0: a twentieth of the run, 10 "
            "to 200. The paper controller: from the first on; 0: a fiftieth, 5 repeats to 500.",
            at_least(0));
    v.field("ratio_smoothing", ratio_smoothing,
            "Share of the old item ratios that a probe leaves in the new ones (paper).",
            at_least(0.0), below(1.0));
    v.field("probe", probe,
            "in_place: probes measure on batches that are trained on; separate: on extra batches.",
            one_of({"in_place", "separate"}));
    v.field("probe_fraction", probe_fraction,
            "Numbers in the sketch of a weight gradient, as a share of its entries.", above(0.0),
            at_most(1.0));
    v.field("selection", selection,
            "systematic: a fixed number of rows, one random number for all; bernoulli: "
            "independent.",
            one_of({"systematic", "bernoulli"}));
    v.field("kept_items", kept_items,
            "In each batch. fixed: the ratio's share; by_norm: as many as lie above a threshold on "
            "norms, the ratio's share in the mean; auto: by_norm where the host sees norms at once "
            "and the budget controller decides.",
            one_of({"auto", "fixed", "by_norm"}));
    v.field("echo", echo,
            "Dropped items that a BatchNorm below a gate passes a gradient to, in place of all; 0: "
            "a 32nd of the batch in the last stage, a 128th before.",
            at_least(0));
    v.field("act_ratio", act_ratio,
            "Fixed item ratios, input to output, instead of probes; one number stands for all.",
            above(0.0), at_most(1.0));
    v.field("weight_ratio", weight_ratio,
            "Fixed weight ratios instead of probes; one number stands for all.", above(0.0),
            at_most(1.0));
  }
  void validate(ConfigErrors& errors) const;
};

// What a probe measured on one batch, of the weights of sampled linears.
struct MeasuredBatch {
  std::int64_t items = 0;          // N
  int passes = 0;                  // sampled backwards
  std::vector<double> v_act, v_w;  // [linear]: added by SampleA, by SampleW; means over the passes
  // [linear]: squared error of a systematic draw at the ratio in force, and its variance by Eq. 3.
  // The draw is from all rows. Both are 0 where nothing was drawn.
  std::vector<double> drawn_error, drawn_variance;
  std::vector<std::vector<double>> item_score;  // [gate][item] of the exact pass (item_scores)
  std::vector<double> tokens;                   // [item]: T_i, 1 without tokens
  // [gate]: of these scores, as the last step left them. They decide how many items a step keeps.
  // Empty: the ratios do.
  std::vector<ItemThreshold> threshold;
  // The first n items (kMostItemsCompared) have:
  // [linear][n * n]: <h_i, h_j>, h_i item i's part. Where a layer mixes items, parts are unknown.
  // They are then taken as unrelated. Their norms are as the scores at the top gate, and their
  // variance is the batch's.
  std::vector<std::vector<double>> gram;
  std::vector<std::vector<double>> row_score;      // [linear][row]: ||dy_r|| ||x_r||, if asked for
  std::vector<std::vector<std::int64_t>> offsets;  // [linear][n + 1]: rows of the items
  // Seconds of the exact backward. Empty: they were not measured.
  std::vector<double> weight_seconds;  // [linear]: of dW
  std::vector<double> item_seconds;    // [gate]: of all else from the gate down to the next
  // [n]: what a draw before the forward would rank items by, negative: nothing is known of it.
  // Empty: there is no such draw.
  std::vector<double> forward_score;
  // [n]: ||G_i||_F at the top gate as SampleF expects it, negative: nothing is known of it.
  std::vector<double> forward_norm;

  // Rows of a linear in the whole batch, as the first n items have them.
  double rows(std::size_t linear) const {
    return static_cast<double>(offsets[linear].back() * items) /
           static_cast<double>(offsets[linear].size() - 1);
  }
};

// The smallest share of items whose gradient norms sum to s of the whole. At least one item.
// 1 for s = 1: exact training, also if this batch has zero norms.
// 1 if the norms sum to nothing that could be ranked.
double top_mass(double s, std::vector<double> norms);

// By the names of metrics.jsonl, each [gate], from the norms ||G_i||_F of a probe's items:
// gate_norm   root of the sum of their squares; of several batches, of the mean of the sums
// gate_share  share of the items, largest first, that hold 95 % of the sum of norms
// `per_token`: scores are ||G_i||_F / sqrt(T_i).
nlohmann::ordered_json gate_norms(const std::vector<MeasuredBatch>& probe, bool per_token);

// The variance of a sum of `items` terms that were drawn alike, by the inner products of n of them:
// items / (n - 1) (tr K - 1'K1 / n). One term tells nothing: 0.
double variance_of_sum(const std::vector<double>& gram, std::int64_t items);

// The model as a controller sees it.
struct ControlledModel {
  struct Linear {
    int gate;  // that its gradient has passed last; -1: none
    // Costs of a row in dW, and in dX with all that comes with it: C D, or seconds.
    double weight_cost, input_cost;
    bool exact = false;  // all rows are kept
  };
  int gates = 0;
  std::vector<Linear> linears;
  std::vector<bool> exact_gates;  // [gate]: drops nothing; empty: none
  bool mixes_items = false;       // a layer does
  double forward_ratio = 0;       // of SampleF, where it is fixed; 0: it is open, or there is none
};

// Ratios that stay as they were given. Others move them.
class Controller {
 public:
  // Throws Error(kBadConfig) when fixed ratios do not fit the model.
  Controller(const VcasOptions& options, const ControlledModel& model);
  virtual ~Controller() = default;

  const std::vector<double>& act_ratio() const { return act_ratio_; }        // rho [gate]
  const std::vector<double>& weight_ratio() const { return weight_ratio_; }  // nu [linear]
  // The share that the forward keeps of a step's items that were seen before.
  virtual double forward_ratio() const { return 1; }
  std::int64_t probes() const { return probes_; }
  // Whether probes change the ratios.
  virtual bool adapts() const { return false; }
  // Whether a probe starts at this step, counted from 0.
  virtual bool probe_due(std::int64_t /*step*/) const { return false; }
  // Sampled backwards of each batch of the next probe, at most.
  virtual int probe_passes() const { return 0; }

  // Sets the ratios from a probe. Returns, for the log, which of them it had to keep and why.
  // Empty if it set all.
  [[nodiscard]] virtual std::string update(const std::vector<MeasuredBatch>& /*probe*/) {
    return {};
  }

  // These gates and linears drop nothing from now on.
  void make_exact(const std::vector<int>& gates, const std::vector<int>& linears);

  // By the names of metrics.jsonl: the ratios, and what the last probe found.
  virtual nlohmann::ordered_json report() const;
  virtual nlohmann::ordered_json measured() const { return nlohmann::ordered_json::object(); }
  virtual std::string progress() const { return {}; }  // "s 0.83"

  // Bit-exact; null where nothing adapts. Reading null changes nothing.
  // Throws Error(kBadData) for a state of another model or controller.
  virtual nlohmann::json to_json() const { return nullptr; }
  virtual void from_json(const nlohmann::json& /*state*/) {}

 protected:
  // An exact gate takes the ratio of the next gate above it, or 1 at the top. So it draws nothing.
  // An exact linear takes 1.
  void raise_exact_ratios();
  nlohmann::json ratios_to_json() const;
  // What is not sampled keeps the ratio 1.
  void ratios_from_json(const nlohmann::json& state);

  VcasOptions options_;
  ControlledModel model_;
  std::vector<double> act_ratio_, weight_ratio_;
  std::int64_t probes_ = 0;

 private:
  std::vector<int> made_exact_gates_, made_exact_linears_;
};

std::unique_ptr<Controller> make_controller(const VcasOptions& options,
                                            const ControlledModel& model, std::uint64_t seed,
                                            std::int64_t total_steps);

}  // namespace vcas
