#include "tools/session.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/progress.h"
#include "kernels/dry_ops.h"
#include "optim/methods/item_choice.h"
#include "tools/launch.h"
#include "tools/pretrained.h"

namespace vcas {
namespace {

// Separate probes draw their batches in an order of their own.
constexpr std::uint64_t kProbeSeed = 0x9E3779B97F4A7C15;

constexpr std::pair<Phase, const char*> kTrainPhases[] = {
    {Phase::kForward, "forward"}, {Phase::kBackward, "backward"}, {Phase::kProbe, "probe"}};

// The share of the FLOPs of a whole step's forward that the items of the batch take.
// FLOPs go with rows. The mean rows of the whole step's items follow from the weights.
// The batch has items. Items without weights, or all of weight 0, count as those that were dropped
// do.
double forward_share(const Batch& batch) {
  if (batch.dropped == 0) return 1;
  const auto count = static_cast<double>(batch.items);
  double rows = 0, weights = 0, weighted_rows = 0;
  for (std::size_t i = 0; i < batch.weights.size(); ++i) {
    const double own =
        batch.offsets.empty() ? 1 : static_cast<double>(batch.offsets[i + 1] - batch.offsets[i]);
    const auto weight = static_cast<double>(batch.weights[i]);
    rows += own;
    weights += weight;
    weighted_rows += weight * own;
  }
  const double whole = count + static_cast<double>(batch.dropped);
  return weighted_rows > 0 ? rows * weights / (whole * weighted_rows) : count / whole;
}

// The batch with `length` tokens in each item.
Batch padded_to(std::int64_t length, const Batch& batch) {
  Batch padded = batch;
  const auto tokens = static_cast<std::size_t>(length * batch.items);
  padded.tokens.assign(tokens, 0);
  if (!batch.token_types.empty()) padded.token_types.assign(tokens, 0);
  for (std::int64_t i = 0; i <= batch.items; ++i) padded.offsets[i] = i * length;
  for (std::int64_t i = 0; i + 1 < std::ssize(batch.masked_offsets); ++i)
    for (std::int64_t p = batch.masked_offsets[i]; p < batch.masked_offsets[i + 1]; ++p)
      padded.masked_rows[p] += static_cast<std::int32_t>(padded.offsets[i] - batch.offsets[i]);
  return padded;
}

// FLOPs of an exact step, counted on a device that computes nothing.
double count_padded_step(const RunConfig& config, const RunData& data, const Batch& batch) {
  CountOps ops(std::make_unique<DryOps>());
  const std::unique_ptr<Model> model =
      make_model(ops, compute_dtype(precision_of(config)), config, data.facts(),
                 data.tokenizer.get(), data.limits, config.micro_batch());
  const StepFlops flops =
      count_exact_step(*model, ops, config, padded_to(data.train->item_shape()[0], batch));
  return flops.forward + flops.backward;
}

// A range of the profiler, where there is one.
class ProfiledRange {
 public:
  ProfiledRange(RangeOps* ranges, const char* name) : ranges_(ranges) {
    if (ranges_) ranges_->begin(name);
  }
  ProfiledRange(const ProfiledRange&) = delete;
  ProfiledRange& operator=(const ProfiledRange&) = delete;
  ~ProfiledRange() {
    if (ranges_) ranges_->end();
  }

 private:
  RangeOps* ranges_;
};

}  // namespace

nlohmann::json RunTotals::to_json() const {
  return {{"clipped_steps", clipped_steps},
          {"clipped_after", clipped_after},
          {"skipped_steps", skipped_steps},
          {"late_loss", late_loss},
          {"late_steps", late_steps},
          {"data_seconds", data_seconds},
          {"eval_seconds", eval_seconds},
          {"checkpoint_seconds", checkpoint_seconds},
          {"forward_seconds", step_seconds.forward},
          {"backward_seconds", step_seconds.backward},
          {"probe_seconds", step_seconds.probe},
          {"exchange_seconds", step_seconds.exchange},
          {"optimizer_seconds", step_seconds.optimizer},
          {"items", items},
          {"dropped_items", dropped_items}};
}

void RunTotals::from_json(const nlohmann::json& state) {
  clipped_steps = state.value("clipped_steps", std::int64_t{0});
  clipped_after = state.value("clipped_after", std::int64_t{0});
  skipped_steps = state.value("skipped_steps", std::int64_t{0});
  state.at("late_loss").get_to(late_loss);
  state.at("late_steps").get_to(late_steps);
  state.at("data_seconds").get_to(data_seconds);
  state.at("eval_seconds").get_to(eval_seconds);
  state.at("checkpoint_seconds").get_to(checkpoint_seconds);
  state.at("forward_seconds").get_to(step_seconds.forward);
  state.at("backward_seconds").get_to(step_seconds.backward);
  state.at("probe_seconds").get_to(step_seconds.probe);
  step_seconds.exchange = state.value("exchange_seconds", 0.0);
  state.at("optimizer_seconds").get_to(step_seconds.optimizer);
  items = state.value("items", std::int64_t{0});
  dropped_items = state.value("dropped_items", std::int64_t{0});
}

nlohmann::ordered_json Savings::to_json() const {
  nlohmann::ordered_json json = {
      {"flops_saved", flops},           {"backward_flops_saved", backward_flops},
      {"formula_flops_saved", formula}, {"formula_backward_flops_saved", formula_backward},
      {"time_saved", nullptr},          {"time_saved_interval", nullptr}};
  if (is_known(time)) json["time_saved"] = time->middle;
  if (time) json["time_saved_interval"] = {time->low, time->high};
  return json;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

StepFlops count_exact_step(Model& model, CountOps& ops, const RunConfig& config,
                           const Batch& batch) {
  const std::vector<Tensor> gradients = model.graph.parameters().gradient_list();
  Exec exec = model.graph.make_exec(config.seed, 0, true);
  ops.reset();
  // Items of a text have rows of their own. Others cost the same, and the first of them tell.
  const std::int64_t items =
      batch.offsets.empty() ? std::min(config.micro_batch(), batch.items) : batch.items;
  for (std::int64_t first = 0; first < items; first += config.micro_batch()) {
    ops.enter_phase(Phase::kForward);
    model.load(ops, batch, first, std::min(config.micro_batch(), items - first));
    model.graph.forward(exec);
    ops.enter_phase(Phase::kBackward);
    model.graph.backward(exec, {.gradients = {gradients}});
  }
  // All ranks have such a share.
  const double portions = static_cast<double>(config.train.batch_size) / static_cast<double>(items);
  const StepFlops flops{portions * ops.flops(Phase::kForward),
                        portions * ops.flops(Phase::kBackward)};
  ops.reset();
  return flops;
}

FormulaFlops make_formula(const Graph& graph, const Batch& batch) {
  const auto mean_rows = [&](const std::vector<std::int64_t>& offsets) {
    return offsets.empty() ? 0
                           : static_cast<double>(offsets.back()) / static_cast<double>(batch.items);
  };
  std::vector<FormulaFlops::Linear> linears;
  for (std::size_t k = 0; k < graph.sampled_weights().size(); ++k) {
    const Parameter& weight = graph.parameters()[graph.sampled_weights()[k]];
    const double rows = graph.weight_layout(static_cast<int>(k))
                            .rows(1.0, mean_rows(batch.offsets), mean_rows(batch.masked_offsets));
    linears.push_back({.gate = graph.gate_above(static_cast<int>(k)),
                       .size = rows * static_cast<double>(weight.shape.elements())});
  }
  return FormulaFlops(std::move(linears));
}

Session::Session(const RunConfig& config, const RunData& data, const Watch& watch,
                 std::shared_ptr<Ranks> ranks)
    : config_(config),
      data_(data),
      ranks_(std::move(ranks)),
      ready_(make_model(config, data.facts(), data.tokenizer.get(), data.limits,
                        std::max(config.micro_batch(), config.eval_batch()), watch)),
      formula_({}) {
  check_same_device(ops().name(), *ranks_);  // before they exchange what lies there
  model().graph.parameters().initialize(ops(), config.seed);
  if (!config.model.pretrained.empty() && !data.goes_on)
    pretrained_ = load_pretrained(find_pretrained(config.model.pretrained),
                                  model_options(config, data.tokenizer.get()), model(), ops());
  Loader loader(*data.train, loader_options());
  formula_ = make_formula(model().graph, loader.next());
  steps_per_epoch_ = loader.steps_per_epoch();
  total_steps_ = vcas::total_steps(config, steps_per_epoch_);
  LoaderOptions probe_options = loader_options();
  probe_options.seed ^= kProbeSeed;
  probe_options.prefetch = 1;
  TrainerOptions options = trainer_options(config, total_steps_, steps_per_epoch_);
  options.items = data.train->size();
  options.ranks = ranks_;
  trainer_ =
      std::make_unique<Trainer>(model(), ops(), options, [this, probe_options](std::int64_t first) {
        return std::make_unique<Loader>(*data_.train, probe_options, first);
      });
}

LoaderOptions Session::loader_options() const {
  LoaderOptions options = train_loader_options(config_);
  options.place = ranks_->place();
  options.label_run = label_run(model().graph, config_.micro_batch());
  options.label_part = config_.micro_batch();
  return options;
}

void Session::start_recording() {
  if (ready_.trace) ready_.trace->begin();
  if (ready_.ranges) ready_.ranges->start();
}

void Session::stop_recording() {
  if (ready_.ranges) ready_.ranges->stop();
  if (ready_.trace) ready_.trace->close();
}

void Session::prepare() {
  if (exact_step_flops_) return;
  check_room_for_products(config_);
  Loader loader(*data_.train, loader_options());
  const Batch& batch = loader.next();
  if (data_.limits.tokens > 0) padded_step_flops_ = count_padded_step(config_, data_, batch);
  // Ranks may have texts of different lengths.
  const StepFlops own = count_exact_step(model(), ops(), config_, batch);
  const double mine[] = {own.forward, own.backward, padded_step_flops_};
  const std::vector<double> all = ranks_->gather_all(mine);
  const auto mean = [&](std::size_t of) {
    double sum = 0;
    for (std::size_t at = of; at < all.size(); at += std::size(mine)) sum += all[at];
    return sum / ranks_->size();
  };
  exact_step_flops_ = StepFlops{mean(0), mean(1)};
  padded_step_flops_ = mean(2);
}

StepFlops Session::exact_step_flops() {
  prepare();
  return *exact_step_flops_;
}

void Session::queue_step() {
  prepare();
  if (!loader_)
    loader_ = std::make_unique<Loader>(*data_.train, loader_options(), trainer_->steps(),
                                       trainer_->chooser());
  const double start = monotonic_seconds();
  const Batch& batch = loader_->next();
  totals_.data_seconds += monotonic_seconds() - start;

  const ProfiledRange range(ready_.ranges, "step");
  const double looked = ops().look_seconds();
  const Counted before = counted_so_far();
  const bool exact = trainer_->queue(batch).exact;
  const double forward = flops(Phase::kForward) - before.forward;
  // A rank may get no item: then nothing tells the rows of those that it would have had.
  dropped_forward_ += batch.items > 0 ? forward * (1 / forward_share(batch) - 1)
                                      : exact_step_flops_->forward / ranks_->size();
  if (!exact) {
    sampled_forward_ += forward;
    sampled_backward_ += flops(Phase::kBackward) - before.backward;
  }
  Counted counted = counted_so_far();
  if (batch.items > 0) {
    FormulaFlops step = formula_;
    step.clear();
    trainer_->method().add_cost(step);
    counted.formula_forward = step.cost().forward;
    counted.formula_backward = step.cost().backward;
  }
  queued_.push_back({counted, ops().look_seconds() - looked});
}

void Session::finish_steps(bool all, const std::function<void(const StepReport&)>& take) {
  // When a step arrives differs between ranks, which must finish at the same places.
  const auto arrived = [&] { return ranks_->size() == 1 && trainer_->arrived(); };
  while (trainer_->queued() > 0 && (all || trainer_->full() || arrived())) take(finish_step());
}

StepReport Session::step() {
  queue_step();
  return finish_step();
}

StepReport Session::finish_step() {
  StepReport report = trainer_->finish();
  counted_ = sum_over_ranks(queued_.front().counted);
  formula_.add_step(
      {counted_.formula_forward / ranks_->size(), counted_.formula_backward / ranks_->size()});
  report.seconds.backward -= queued_.front().look_seconds;
  report.seconds.probe += queued_.front().look_seconds;
  queued_.pop_front();
  totals_.step_seconds.forward += report.seconds.forward;
  totals_.step_seconds.backward += report.seconds.backward;
  totals_.step_seconds.probe += report.seconds.probe;
  totals_.step_seconds.exchange += report.seconds.exchange;
  totals_.step_seconds.optimizer += report.seconds.optimizer;
  totals_.items += report.items;
  totals_.dropped_items += report.dropped;
  if (report.measured && !ready_.ranges) {
    probed_ratio_ += report.seconds.backward / report.seconds.forward;
    ++probed_steps_;
    if (report.probed) {
      probed_ratio_ /= static_cast<double>(probed_steps_);
      probed_ratios_.insert(std::ranges::upper_bound(probed_ratios_, probed_ratio_), probed_ratio_);
      backward_of_forward_ = estimate_median(probed_ratios_);
      probed_ratio_ = 0;
      probed_steps_ = 0;
    }
  }
  if (report.skipped)
    ++totals_.skipped_steps;
  else if (report.clip_factor < 1)
    ++totals_.clipped_steps;
  if (10 * report.step > 9 * total_steps_) {
    totals_.late_loss += report.loss;
    ++totals_.late_steps;
  }
  return report;
}

std::optional<TestResult> Session::evaluate(const std::function<bool()>& stop) {
  const double start = monotonic_seconds();
  const ProfiledRange range(ready_.ranges, "eval");
  const auto evaluate_batch = [&](const Batch& batch, std::vector<float>* logits) {
    return trainer_->evaluate(batch, logits);
  };
  std::optional<TestResult> result = evaluate_tests(config_, data_, evaluate_batch, stop, *ranks_);
  if (result) totals_.eval_seconds += monotonic_seconds() - start;
  return result;
}

double Session::epoch(std::int64_t step) const {
  return static_cast<double>(step) / static_cast<double>(steps_per_epoch_);
}

double Session::flops(Phase phase) const {
  const auto earlier = earlier_flops_.find(phase);
  return ready_.ops->flops(phase) + (earlier == earlier_flops_.end() ? 0 : earlier->second);
}

Session::Counted Session::counted_so_far() const {
  return {.forward = flops(Phase::kForward),
          .backward = flops(Phase::kBackward),
          .probe = flops(Phase::kProbe),
          .dropped_forward = dropped_forward_,
          .sampled_forward = sampled_forward_,
          .sampled_backward = sampled_backward_};
}

Session::Counted Session::sum_over_ranks(Counted own) const {
  if (ranks_->size() == 1) return own;
  double Counted::*const numbers[] = {&Counted::forward,         &Counted::backward,
                                      &Counted::probe,           &Counted::dropped_forward,
                                      &Counted::sampled_forward, &Counted::sampled_backward,
                                      &Counted::formula_forward, &Counted::formula_backward};
  constexpr std::size_t kNumbers = std::size(numbers);
  double mine[kNumbers];
  for (std::size_t i = 0; i < kNumbers; ++i) mine[i] = std::exchange(own.*numbers[i], 0);
  const std::vector<double> all = ranks_->gather_all(mine);
  for (std::size_t i = 0; i < all.size(); ++i) own.*numbers[i % kNumbers] += all[i];
  return own;
}

double Session::exact_train_seconds(double backward_of_forward) const {
  const StepSeconds& steps = totals_.step_seconds;
  return totals_.data_seconds + steps.forward * (1 + backward_of_forward) + steps.exchange +
         steps.optimizer;
}

Savings Session::savings() const {
  Savings savings;
  if (trainer_->finished() == 0) return savings;
  const auto [forward, own_backward, probe, dropped, sampled_forward, sampled_backward,
              formula_forward, formula_backward] = counted_;
  const double exact_forward = forward + dropped;
  const double backward = own_backward + probe;
  const double exact_backward =
      own_backward - sampled_backward +
      (sampled_forward + dropped) * (exact_step_flops_->backward / exact_step_flops_->forward);
  savings.backward_flops = 1 - backward / exact_backward;
  savings.flops = 1 - (forward + backward) / (exact_forward + exact_backward);
  savings.formula = formula_.saved();
  savings.formula_backward = formula_.backward_saved();
  if (const auto& of = backward_of_forward_; of && totals_.dropped_items == 0) {
    const auto saved = [&](double ratio) {
      return 1 - train_seconds() / exact_train_seconds(ratio);
    };
    savings.time = {.middle = saved(of->middle), .low = saved(of->low), .high = saved(of->high)};
  }
  return savings;
}

nlohmann::json Session::state() const {
  const nlohmann::json flops_by_phase = {{"dropped_forward", counted_.dropped_forward},
                                         {"sampled_forward", counted_.sampled_forward},
                                         {"sampled_backward", counted_.sampled_backward},
                                         {"forward", counted_.forward},
                                         {"backward", counted_.backward},
                                         {"probe", counted_.probe}};
  nlohmann::json totals = totals_.to_json();
  totals["probed_ratios"] = probed_ratios_;
  nlohmann::json state = {{"trainer", trainer_->state()},
                          {"totals", totals},
                          {"flops", flops_by_phase},
                          {"formula", formula_.to_json()}};
  if (const ProductChoices* const products = ready_.ops->product_choices())
    state["products"] = products->chosen;
  return state;
}

void Session::restore(const nlohmann::json& state) {
  try {
    if (ProductChoices* const products = ops().product_choices())
      products->chosen = state.value("products", products->chosen);
    trainer_->restore(state.at("trainer"));
    totals_.from_json(state.at("totals"));
    probed_ratios_ = state.at("totals").value("probed_ratios", std::vector<double>());
    backward_of_forward_ = estimate_median(probed_ratios_);
    prepare();
    ops().reset();
    for (const auto& [phase, name] : kTrainPhases)
      earlier_flops_[phase] = state.at("flops").at(name).get<double>() / ranks_->size();
    dropped_forward_ = state.at("flops").value("dropped_forward", 0.0) / ranks_->size();
    // Older states do not tell sampled steps from exact ones.
    const auto sampled = [&](const char* name, Phase whole) {
      return state.at("flops").contains(name) ? state["flops"][name].get<double>() / ranks_->size()
                                              : earlier_flops_[whole];
    };
    sampled_forward_ = sampled("sampled_forward", Phase::kForward);
    sampled_backward_ = sampled("sampled_backward", Phase::kBackward);
    formula_.from_json(state.at("formula"));
    loader_.reset();
    counted_ = sum_over_ranks(counted_so_far());
  } catch (const nlohmann::json::exception& e) {
    throw Error(ExitCode::kBadData, fmt::format("the state of the run: {}", e.what()));
  }
}

}  // namespace vcas
