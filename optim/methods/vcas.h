// VCAS: SampleA and SampleW at ratios that a controller adapts to probes, and SampleF.
#pragma once

#include "optim/methods/auto_exact.h"
#include "optim/methods/forward_sample.h"
#include "optim/methods/variance_probe.h"

namespace vcas {

struct VcasKind final : MethodKind, VcasOptions, ForwardOptions {
  void fields(Setting& v) {
    VcasOptions::fields(v);
    ForwardOptions::fields(v);
  }
  void validate(ConfigErrors& errors) const;
  std::string summary() const override {
    return "items and rows are sampled at ratios that hold a budget of variance";
  }
  void settle(std::int64_t steps_per_epoch) override;
  std::vector<std::string> idle_settings(const Model& model) const override;
  std::unique_ptr<Method> make(const Training& training) const override;
};

// The settings of VCAS; null: another method is chosen.
VcasOptions* find_vcas(Part<MethodKind>& method);

// The sampled linears of a finished graph. `forward_ratio`: as of ControlledModel.
ControlledModel controlled_model(const Graph& graph, double forward_ratio = 0);

class Vcas final : public Method {
 public:
  Vcas(const Training& training, const VcasOptions& options,
       const ForwardOptions& forward_options = {});

  void gather() override {
    if (forward_) forward_->gather();
  }
  ItemChooser* chooser() override { return forward_.get(); }
  void begin_step(std::int64_t step) override;
  PassKind next(std::int64_t micro) const override;
  bool keeps_norms(PassKind kind) const override;
  BackwardHooks* hooks(PassKind kind) override;
  bool repeats(PassKind kind) const override;
  void end_pass(const Batch& batch, std::int64_t first, std::int64_t items) override;
  void after_pass(Exec& exec, const BackwardContext& context) override;
  bool end_step() override;
  bool at_rest() const override { return !probing_; }
  void add_cost(FormulaFlops& formula) const override;

  bool samples() const override { return true; }
  std::string summary() const override;
  std::string progress() const override;
  nlohmann::ordered_json report() const override;
  nlohmann::ordered_json measured() const override;
  Complaint complaint() const override;
  std::size_t bytes() const override;
  nlohmann::json state() const override;
  void restore(const nlohmann::json& state) override;
  std::span<float> item_memory() override;

  const VcasOptions& options() const { return options_; }
  const Controller& controller() const { return *controller_; }
  const SampledBackward::Pass& sampling() const { return sampled_.pass; }
  // Sampled backwards of the last probe on each of its batches.
  int probe_passes() const { return probe_passes_; }
  // The buckets of each sampled linear's sketch, as a share of its weight's entries; empty without
  // probes.
  std::vector<double> sketch_shares() const;

 private:
  bool lacks_other_batch() const;
  // Whether the number of items that a gate keeps follows the norms of each batch.
  bool follows_norms() const;
  void set_ratios();
  void restore_thresholds(const nlohmann::json& state);
  bool begins_probe(std::int64_t step) const;
  bool probes_at(std::int64_t step) const;
  BackwardHooks* sampling_hooks(PassKind kind);
  void set_forecast(const Batch& batch, std::int64_t items);
  // What AutoExact finds goes exact. Returns a word on it; empty: it found nothing.
  std::string give_up_losses();
  void share_schedule();
  Exec forward_beside(const Batch& batch, std::int64_t items, std::int64_t number);
  void run_separate_probe();

  Training training_;
  VcasOptions options_;
  std::unique_ptr<Controller> controller_;
  SampledBackward sampled_;
  // Null when ratios never change. The gradient of one item has no variance to measure.
  std::unique_ptr<VarianceProbe> probe_;
  std::unique_ptr<ForwardSample> forward_;  // null: every item is computed
  std::unique_ptr<AutoExact> auto_exact_;   // null: nothing goes exact
  bool timed_ = false;                      // the present step, for auto_exact_
  bool finds_forward_ratio_ = false;
  ForwardSample::Forecast forecast_;  // of the step that a probe measures
  bool in_place_;
  int probe_batches_;                              // of a probe on this rank
  bool drops_rows_ = false, drops_items_ = false;  // at the present ratios
  bool probing_ = false;
  std::int64_t begun_step_ = -1;                  // the last one
  std::vector<ItemThreshold> thresholds_before_;  // when it began
  int measured_before_ = 0;                       // batches of this probe, when it began
  bool probed_ = false;                           // the last step ended a probe
  PassKind step_kind_ = PassKind::kExact;         // of the last step's first pass
  KeepRatios step_ratios_;                        // that it had
  int probe_passes_ = 0;
  std::string probe_note_;
  nlohmann::ordered_json gate_norms_ = nlohmann::ordered_json::object();  // of the last probe
};

}  // namespace vcas
