#include "optim/methods/vcas.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "optim/evaluator.h"
#include "optim/methods/item_choice.h"

namespace vcas {

namespace {

// Batches of probes alone have step numbers that training never reaches.
// So they share no dropout and no draw with training.
constexpr std::uint64_t kProbeSteps = std::uint64_t{1} << 39;

// Batches that measured ones are compared with have numbers that measured ones never reach.
constexpr std::int64_t kComparedBatches = std::int64_t{1} << 38;

int quotient_up(int number, int divisor) { return (number + divisor - 1) / divisor; }

std::string format_range(const std::vector<double>& values) {  // "0.31-0.97"
  if (values.empty()) return "-";
  const auto [low, high] = std::ranges::minmax(values);
  return fmt::format("{:.2f}-{:.2f}", low, high);
}

VCAS_REGISTER_PART(MethodKind, "vcas", VcasKind);

}  // namespace

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MeasuredBatch, items, passes, v_act, v_w, drawn_error,
                                   drawn_variance, threshold, item_score, tokens, gram, row_score,
                                   offsets, weight_seconds, item_seconds, forward_score,
                                   forward_norm)

ControlledModel controlled_model(const Graph& graph, double forward_ratio) {
  ControlledModel model{.gates = graph.gates(),
                        .linears = {},
                        .mixes_items = mixes_items(graph),
                        .forward_ratio = forward_ratio};
  for (int k = 0; k < std::ssize(graph.sampled_weights()); ++k) {
    const auto weight = static_cast<std::size_t>(graph.sampled_weights()[k]);
    const auto cost = static_cast<double>(graph.parameters()[weight].shape.elements());
    model.linears.push_back({graph.gate_above(k), cost, cost});
  }
  return model;
}

void VcasKind::settle(std::int64_t steps_per_epoch) {
  const std::string given = update_every.text();
  update_every = update_every.steps(steps_per_epoch);
  if (!probes_too_often(update_every.steps())) return;
  throw Error(ExitCode::kBadConfig,
              fmt::format("method.update_every \"{}\" is {} steps here, and must be above "
                          "{}, the exact steps of a probe in place",
                          given, update_every.steps(), probe_batches()));
}

void VcasKind::validate(ConfigErrors& errors) const {
  VcasOptions::validate(errors);
  const bool finds_ratio = !follows_paper() && !pinned() && probe == "in_place";
  if (forward && forward_ratio == 0 && !finds_ratio)
    errors.add({"forward_ratio", "forward"},
               "is missing: the share of items that method.forward keeps, above 0; only "
               "method.controller=budget with probes in place finds it");
}

std::vector<std::string> VcasKind::idle_settings(const Model& model) const {
  const nlohmann::json own = to_json(*this), plain = to_json(VcasKind());
  std::vector<std::string> idle;
  const auto add = [&](std::initializer_list<const char*> names, const std::string& why) {
    for (const char* name : names)
      if (own.at(name) != plain.at(name))
        idle.push_back(fmt::format("method.{} has no effect: {}", name, why));
  };
  const std::string decides = fmt::format("method.controller is \"{}\"", controller);
  if (pinned())
    add({"tau_act", "tau_w", "budget", "cost", "auto_exact", "s_step", "weight_multiplier",
         "weight_ratio_min", "repeats", "update_every", "ratio_smoothing", "probe",
         "probe_fraction"},
        fmt::format("method.{} is given", act_ratio.empty() ? "weight_ratio" : "act_ratio"));
  else if (follows_paper())
    add({"budget", "cost"}, decides);
  else
    add({"s_step", "weight_multiplier", "ratio_smoothing"}, decides);
  const std::string sampled = fmt::format("method.sample is \"{}\"", sample);
  if (!pinned() && !samples_items()) add({"tau_act"}, sampled);
  if (!pinned() && !samples_rows()) add({"tau_w", "weight_ratio_min"}, sampled);
  if (!forward) add({"tau_f", "forward_ratio", "forward_floor"}, "method.forward is false");
  if (!mixes_items(model.graph)) add({"echo"}, "the model has no BatchNorm");
  return idle;
}

std::unique_ptr<Method> VcasKind::make(const Training& training) const {
  return std::make_unique<Vcas>(training, *this, *this);
}

VcasOptions* find_vcas(Part<MethodKind>& method) { return dynamic_cast<VcasKind*>(&*method); }

Vcas::Vcas(const Training& training, const VcasOptions& options,
           const ForwardOptions& forward_options)
    : training_(training),
      options_(options),
      controller_(make_controller(
          options,
          controlled_model(training.model.graph,
                           forward_options.forward ? forward_options.forward_ratio : 0),
          training.seed, training.total_steps)),
      sampled_(training.ops, training.model.graph.plan()),
      in_place_(options.probe == "in_place"),
      probe_batches_(quotient_up(options.probe_batches(), training.ranks->size())) {
  sampled_.pass.selection = selection_of(options.selection);
  sampled_.pass.scores_per_token = !options.follows_paper();
  sampled_.pass.echoes = options.echo;
  if (follows_norms()) sampled_.thresholds.resize(controller_->act_ratio().size());
  if (controller_->adapts() && training.micro_batch > 1 && !lacks_other_batch() &&
      !training.model.graph.sampled_weights().empty())
    probe_ = std::make_unique<VarianceProbe>(
        training.model.graph, training.ops, sampled_,
        VarianceProbe::Options{.fraction = options.probe_fraction,
                               .most_passes = options.repeats,
                               .curves = !options.follows_paper(),
                               .seconds = options.times_probes(),
                               .scores_per_token = sampled_.pass.scores_per_token,
                               .most_items = training.micro_batch});
  if (probe_ && !in_place_ && !training.probe_source)
    throw Error(ExitCode::kBadConfig,
                "method.probe \"separate\" needs batches besides those of training",
                "give the Trainer a probe_source, or set method.probe=in_place");
  if (probe_ && mixes_items(training.model.graph) && !training.probe_source)
    throw Error(ExitCode::kBadConfig,
                "probes of a model with BatchNorm need batches besides those of training",
                "give the Trainer a probe_source, or set method.act_ratio and method.weight_ratio");
  if (forward_options.forward)
    forward_ = std::make_unique<ForwardSample>(
        training, forward_options, [this](std::int64_t step) { return probes_at(step); });
  if (options.auto_exact && probe_)
    auto_exact_ = std::make_unique<AutoExact>(controlled_model(training_.model.graph));
  finds_forward_ratio_ = forward_ && forward_options.forward_ratio == 0;
  set_ratios();
}

// Above BatchNorm a probe compares two batches. Those of the same items differ by rounding alone.
bool Vcas::lacks_other_batch() const {
  return training_.items > 0 && training_.items <= training_.micro_batch &&
         mixes_items(training_.model.graph);
}

// Ranks would wait for the one that keeps most, and a device for the host.
bool Vcas::follows_norms() const {
  const bool alone = training_.ranks->size() == 1;
  if (options_.kept_items == "by_norm" && !alone)
    throw Error(ExitCode::kBadConfig,
                fmt::format("method.kept_items \"by_norm\" with {} processes: those that keep few "
                            "items would wait for the others",
                            training_.ranks->size()),
                "set method.kept_items=fixed; a run that has \"by_norm\" goes on in one process, "
                "or as a fork");
  if (options_.kept_items != "auto") return options_.kept_items == "by_norm";
  return alone && controller_->adapts() && !options_.follows_paper() && !training_.ops.queues();
}

void Vcas::set_ratios() {
  sampled_.pass.ratios = {controller_->act_ratio(), controller_->weight_ratio()};
  drops_rows_ = drops_some(controller_->weight_ratio());
  drops_items_ = drops_some(controller_->act_ratio());
  if (finds_forward_ratio_) forward_->set_ratio(controller_->forward_ratio());
}

// Whether a probe begins at this step.
// One in place that the run is too short to end would leave no state to save at the end.
bool Vcas::begins_probe(std::int64_t step) const {
  const bool ends = !in_place_ || step + probe_batches_ <= training_.total_steps;
  return probe_ && controller_->probe_due(step) && ends;
}

// Whether a probe in place measures on this step.
bool Vcas::probes_at(std::int64_t step) const {
  for (int before = 0; in_place_ && before < probe_batches_ && before <= step; ++before)
    if (begins_probe(step - before)) return true;
  return false;
}

void Vcas::begin_step(std::int64_t step) {
  if (forward_) forward_->begin_step(step);
  if (step == begun_step_) {  // it threw, and is made again
    sampled_.thresholds = thresholds_before_;
    if (probing_) {
      probe_->keep_measured(measured_before_);
      probing_ = in_place_ && measured_before_ > 0;
    }
  }
  thresholds_before_ = sampled_.thresholds;
  if (!probing_ && begins_probe(step)) {
    // The ranks share the backwards of a probe, rounded up.
    const int passes = quotient_up(options_.probe_batches() * controller_->probe_passes(),
                                   probe_batches_ * training_.ranks->size());
    probe_->begin(training_.seed, controller_->probes(), probe_batches_, passes);
    probe_passes_ = probe_->passes();
    probing_ = true;
    if (!in_place_) run_separate_probe();
  }
  begun_step_ = step;
  measured_before_ = probing_ && in_place_ ? probe_->measured() : 0;
  step_kind_ = next(0);
  step_ratios_ = sampled_.pass.ratios;
  // The step behind a probe: its batch may differ, but not its weights by much.
  timed_ = auto_exact_ && probed_ && step_kind_ == PassKind::kSampled;
  sampled_.times =
      timed_ ? SampleTimes(step_ratios_.act.size(), step_ratios_.weight.size()) : SampleTimes();
}

void Vcas::run_separate_probe() {
  Model& model = training_.model;
  training_.ops.enter_phase(Phase::kProbe);
  const std::int64_t first = controller_->probes() * probe_batches_;
  const std::unique_ptr<BatchSource> source = training_.probe_source(first);
  const std::vector<Tensor> nowhere(model.graph.parameters().size());
  for (std::int64_t i = first; !probe_->complete(); ++i) {
    const Batch& batch = source->next();
    const std::int64_t items = std::min(batch.items, training_.micro_batch);
    Exec exec = forward_beside(batch, items, i);
    const auto terms = static_cast<double>(model.loss_terms(batch, 0, items));
    const BackwardContext context{
        .gradients = {nowhere}, .loss_scale = per_term(terms), .hooks = &probe_->exact_backward()};
    model.graph.backward(exec, context);
    after_pass(exec, context);
  }
}

// Runs forward on the first items of batch `number` of probes alone.
Exec Vcas::forward_beside(const Batch& batch, std::int64_t items, std::int64_t number) {
  const Place place = training_.ranks->place();
  Graph& graph = training_.model.graph;
  training_.model.load(training_.ops, batch, 0, items);
  Exec exec = graph.make_exec(training_.seed, kProbeSteps + number * place.size + place.rank, true);
  exec.keeps_norms = true;
  graph.forward(exec);
  return exec;
}

PassKind Vcas::next(std::int64_t micro) const {
  if (probing_ && in_place_) return micro == 0 ? PassKind::kMeasured : PassKind::kExact;
  return drops_rows_ || drops_items_ ? PassKind::kSampled : PassKind::kExact;
}

bool Vcas::keeps_norms(PassKind kind) const {
  return kind == PassKind::kMeasured || (kind == PassKind::kSampled && drops_rows_);
}

BackwardHooks* Vcas::hooks(PassKind kind) {
  BackwardHooks* sampling = sampling_hooks(kind);
  return forward_ ? forward_->hooks(sampling) : sampling;
}

BackwardHooks* Vcas::sampling_hooks(PassKind kind) {
  switch (kind) {
    case PassKind::kSampled:
      return &sampled_;
    case PassKind::kMeasured:
      return &probe_->exact_backward();
    default:
      return nullptr;
  }
}

// Neither a pass of which the host learns the sizes too late, nor one that is timed. A probe's
// draws of rows have other sizes in each probe.
bool Vcas::repeats(PassKind kind) const {
  if (kind == PassKind::kMeasured) return !options_.times_probes() && !probe_->draws_rows();
  if (timed_) return false;
  return kind != PassKind::kSampled ||
         (sampled_.thresholds.empty() && sampled_.pass.selection == Selection::kSystematic);
}

void Vcas::end_pass(const Batch& batch, std::int64_t first, std::int64_t items) {
  if (timed_ && first == 0) {  // probes measure the first micro-batch too
    auto_exact_->add_sampled(sampled_.times, step_ratios_, forward_ ? forward_->step_share() : 1);
    sampled_.times = {};
  }
  if (!forward_) return;
  if (first == 0 && next(0) == PassKind::kMeasured)
    set_forecast(batch, std::min(items, kMostItemsCompared));
  forward_->end_pass(batch, first, items);
}

void Vcas::set_forecast(const Batch& batch, std::int64_t items) {
  std::vector<double> rows(static_cast<std::size_t>(items), 1.0);
  for (std::size_t i = 0; i < rows.size() && !batch.offsets.empty(); ++i)
    rows[i] = static_cast<double>(batch.offsets[i + 1] - batch.offsets[i]);
  forecast_ = forward_->forecast(batch.ids, rows);
}

void Vcas::after_pass(Exec& exec, const BackwardContext& context) {
  const auto other = [&] {
    const std::int64_t number =
        kComparedBatches + controller_->probes() * probe_batches_ + probe_->measured() - 1;
    const std::unique_ptr<BatchSource> source = training_.probe_source(number);
    const Batch& batch = source->next();
    const std::int64_t items = std::min(batch.items, training_.model.graph.items());
    return forward_beside(batch, items, number);
  };
  probe_->sampled_backwards(exec, context, other);
}

bool Vcas::end_step() {
  if (forward_) forward_->end_step();
  probed_ = probing_ && probe_->complete();
  if (!probed_) return false;
  std::vector<MeasuredBatch> measured = probe_->result();
  measured.back().forward_score = forecast_.score;
  measured.back().forward_norm = forecast_.norm;
  for (MeasuredBatch& batch : measured) batch.threshold = sampled_.thresholds;
  if (auto_exact_) auto_exact_->add_exact(measured.back());
  if (training_.ranks->size() > 1) {  // those of all, on rank 0
    const nlohmann::json mine = std::exchange(measured, {});
    for (const nlohmann::json& of_rank : gather_json(*training_.ranks, mine))
      for (const nlohmann::json& batch : of_rank) measured.push_back(batch);
  }
  if (training_.ranks->is_first()) {
    probe_note_ = controller_->update(measured);
    if (const std::string lost = give_up_losses(); !lost.empty())
      probe_note_ += (probe_note_.empty() ? "" : "; ") + lost;
    gate_norms_ = gate_norms(measured, sampled_.pass.scores_per_token);
  }
  share_schedule();
  set_ratios();
  probing_ = false;
  return true;
}

// What rank 0 has decided holds for all: one schedule.
void Vcas::share_schedule() {
  if (training_.ranks->size() == 1) return;
  const nlohmann::json state = broadcast_json(*training_.ranks, controller_->to_json());
  if (!training_.ranks->is_first()) controller_->from_json(state);
}

std::string Vcas::give_up_losses() {
  if (!auto_exact_) return {};
  const AutoExact::Found found = auto_exact_->take();
  if (!found.any()) return {};
  controller_->make_exact(found.gates, found.linears);
  const Graph& graph = training_.model.graph;
  std::vector<std::string> names;
  for (const int gate : found.gates) names.push_back(fmt::format("gate {}", gate));
  for (const int linear : found.linears)
    names.push_back(graph.parameters()[graph.sampled_weights()[linear]].name);
  return fmt::format("exact from here on, as sampling took longer than what it spared: {}",
                     fmt::join(names, ", "));
}

void Vcas::add_cost(FormulaFlops& formula) const {
  const double kept = forward_ ? forward_->step_share() : 1;
  if (step_kind_ == PassKind::kSampled)
    formula.add_sampled_step(step_ratios_.act, step_ratios_.weight, kept);
  else
    formula.add_exact_step(kept);
  if (!probed_) return;
  const double batch_share =
      static_cast<double>(training_.micro_batch) / static_cast<double>(training_.batch);
  if (in_place_)
    formula.add_in_place_probe(probe_batches_, probe_passes_, batch_share, sketch_shares(),
                               step_ratios_.act);
  else
    formula.add_separate_probe(probe_batches_, probe_passes_, batch_share, step_ratios_.act);
}

std::string Vcas::summary() const {
  std::string added = options_.sample == "both" ? "" : " · " + options_.sample + " only";
  if (finds_forward_ratio_)
    added += fmt::format(" · forward tau_f {}", options_.tau_f);
  else if (forward_)
    added += fmt::format(" · forward keeps {} of items seen before", forward_->ratio());
  if (options_.pinned())
    return fmt::format("fixed ratios · keep act {} · w {} · {}{}",
                       format_range(controller_->act_ratio()),
                       format_range(controller_->weight_ratio()), options_.selection, added);
  if (!probe_) return "no probes: exact training" + added;
  const int batches = probe_batches_ * training_.ranks->size();
  return fmt::format("{} · tau_act {} · tau_w {} · probe every {} steps ({} {}, {}) · {}{}",
                     options_.controller, options_.tau_act, options_.tau_w,
                     options_.probe_interval(training_.total_steps), batches,
                     batches == 1 ? "batch" : "batches", options_.probe, options_.selection, added);
}

std::string Vcas::progress() const {
  return fmt::format("keep act {}  w {}  {}{}", format_range(controller_->act_ratio()),
                     format_range(controller_->weight_ratio()), controller_->progress(),
                     forward_ ? fmt::format("  forward {:.2f}", forward_->step_share()) : "");
}

nlohmann::ordered_json Vcas::report() const {
  nlohmann::ordered_json json = controller_->report();
  if (forward_) json["forward_ratio"] = forward_->ratio();
  return json;
}

nlohmann::ordered_json Vcas::measured() const {
  nlohmann::ordered_json json = controller_->measured();
  json.update(gate_norms_);
  json.update(report());
  return json;
}

Method::Complaint Vcas::complaint() const {
  // Said once: before the first probe.
  if (forward_ && forward_->is_one_epoch() && controller_->probes() == 0)
    return {
        "method.forward drops nothing in a run of one epoch: it knows no item before it is seen",
        "train for more epochs, or set method.forward=false"};
  if (probe_ && in_place_ && probe_batches_ > training_.total_steps)
    return {
        fmt::format("a probe takes {} steps and the run has {}: all keep ratios stay 1 and VCAS "
                    "saves nothing",
                    probe_batches_, training_.total_steps),
        "train for more steps, or set method.type=exact"};
  if (!controller_->adapts() || probe_) return {probe_note_, {}};
  if (training_.model.graph.sampled_weights().empty())
    return {
        "no linear layer of the model has a sampled weight, so VCAS measures nothing: all keep "
        "ratios stay 1",
        "build blocks with add_linear (models/blocks.h), or set method.type=exact"};
  if (training_.micro_batch > 1)
    return {
        fmt::format("a probe above BatchNorm compares two batches, and one has all {} items of the "
                    "training data: all keep ratios stay 1 and VCAS saves nothing",
                    training_.items),
        "lower train.batch_size, or set method.type=exact"};
  return {
      "probes need two items in a micro-batch and there is one: all keep ratios stay 1 and VCAS "
      "saves nothing",
      "raise train.micro_batch or train.batch_size, or set method.type=exact"};
}

std::vector<double> Vcas::sketch_shares() const {
  return probe_ ? probe_->sketch_shares() : std::vector<double>();
}

std::size_t Vcas::bytes() const {
  return sampled_.bytes() + (probe_ ? probe_->bytes() : 0) + (forward_ ? forward_->bytes() : 0);
}

nlohmann::json Vcas::state() const {
  nlohmann::json state = controller_->to_json();
  if (!state.is_null()) state["controller"] = options_.controller;
  if (forward_) state["forward"] = forward_->state();
  if (!sampled_.thresholds.empty()) {
    state["thresholds"] = sampled_.thresholds;
    state["batch"] = training_.batch;
  }
  return state;
}

// Older programs knew the paper's controller only. A fork may have another, which starts anew.
void Vcas::restore(const nlohmann::json& state) {
  if (state.contains("act_ratio") && state.value("controller", "paper") == options_.controller)
    controller_->from_json(state);
  if (forward_ && state.contains("forward")) forward_->restore(state.at("forward"));
  restore_thresholds(state);
  set_ratios();
  probing_ = false;
  begun_step_ = -1;
}

// Scores are of mean losses, so those of another batch have another size. Then thresholds start
// anew, as where the state has none.
void Vcas::restore_thresholds(const nlohmann::json& state) {
  std::vector<ItemThreshold>& thresholds = sampled_.thresholds;
  thresholds.assign(thresholds.size(), {});
  if (thresholds.empty() || !state.contains("batch") || state.at("batch") != training_.batch)
    return;
  const nlohmann::json values = state.value("thresholds", nlohmann::json());
  if (!values.is_array() || values.size() != thresholds.size())
    throw Error(ExitCode::kBadData,
                fmt::format("the state of VCAS has {} thresholds of items, the model {} gates",
                            values.size(), thresholds.size()));
  values.get_to(thresholds);
}

std::span<float> Vcas::item_memory() {
  return forward_ ? forward_->item_memory() : std::span<float>();
}

}  // namespace vcas
