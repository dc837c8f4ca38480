#include "tools/session.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/hardware.h"
#include "core/progress.h"
#include "kernels/decorators/forwarding_ops.h"
#include "optim/eval_metrics.h"
#include "tools/report_text.h"

namespace vcas {
namespace {

// Separate probes draw their batches in an order of their own.
constexpr std::uint64_t kProbeSeed = 0x9E3779B97F4A7C15;

// Exact passes timed before the first step.
constexpr int kTimedPasses = 3;

constexpr std::pair<Phase, const char*> kTrainPhases[] = {
    {Phase::kForward, "forward"}, {Phase::kBackward, "backward"}, {Phase::kProbe, "probe"}};

// `item_tokens`: mean rows of an item of text.
FormulaFlops make_formula(const Graph& graph, double item_tokens) {
  std::vector<FormulaFlops::Linear> linears;
  for (std::size_t k = 0; k < graph.sampled_weights().size(); ++k) {
    const Parameter& weight =
        graph.parameters()[static_cast<std::size_t>(graph.sampled_weights()[k])];
    const std::int64_t layout = graph.weight_layout(static_cast<int>(k));
    const double rows = layout == kTokens ? item_tokens : static_cast<double>(layout);
    linears.push_back({.gate = graph.gate_above(static_cast<int>(k)),
                       .size = rows * static_cast<double>(weight.shape.elements())});
  }
  return FormulaFlops(std::move(linears));
}

// Refuses memory that the machine lacks. Without it Linux grants any amount, and ends the process
// without a word when the memory is used.
class MemoryLimit final : public ForwardingOps {
 public:
  explicit MemoryLimit(std::unique_ptr<Ops> inner)
      : ForwardingOps(std::move(inner)), free_(total_memory_bytes() - resident_bytes()) {}

  std::string name() const override { return inner_->name(); }
  void* allocate(std::size_t bytes) override {
    if (static_cast<std::int64_t>(bytes) > free_)
      throw Error(ExitCode::kOutOfMemory,
                  fmt::format("out of memory: the model needs another {}, and {} of {} are left",
                              format_bytes(static_cast<double>(bytes)),
                              format_bytes(static_cast<double>(free_)),
                              format_bytes(static_cast<double>(total_memory_bytes()))),
                  "a smaller train.micro_batch needs less memory and keeps the result; "
                  "train.eval_batch too must be small");
    free_ -= static_cast<std::int64_t>(bytes);
    return inner_->allocate(bytes);
  }
  void deallocate(void* data, std::size_t bytes) override {
    free_ += static_cast<std::int64_t>(bytes);
    inner_->deallocate(data, bytes);
  }
#define VCAS_OP(Args) \
  void run(const Args& args) override { inner_->run(args); }
  VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

 private:
  std::int64_t free_;
};

// Empty unless other numbers for the classes would make most predictions right.
std::string mix_up_warning(const std::vector<std::int32_t>& predictions,
                           const std::vector<std::int32_t>& labels,
                           const std::vector<std::string>& names) {
  const auto classes = static_cast<std::int32_t>(names.size());
  const auto meaning = mixed_up_classes(predictions, labels, classes);
  if (!meaning) return {};
  std::vector<std::string> moved;
  for (std::size_t k = 0; k < names.size(); ++k)
    if (const auto meant = static_cast<std::size_t>((*meaning)[k]); meant != k)
      moved.push_back(fmt::format("\"{}\" where \"{}\" is right", names[k], names[meant]));
  return fmt::format(
      "the classes seem to be in another order than the model's: it mostly predicts {}",
      fmt::join(moved, ", "));
}

double mean_tokens(const Batch& batch) {
  return batch.offsets.empty()
             ? 0
             : static_cast<double>(batch.offsets.back()) / static_cast<double>(batch.items);
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

ModelOptions model_options(const RunConfig& config, const RunData& data) {
  ModelOptions options = config.model;
  if (data.tokenizer) options.vocabulary = data.tokenizer->size();
  return options.pretrained.empty() ? options : pretrained_options(options);
}

std::vector<std::int32_t> predicted_classes(const std::vector<float>& logits,
                                            std::int64_t classes) {
  std::vector<std::int32_t> predictions;
  for (auto row = logits.begin(); row != logits.end(); row += classes)
    predictions.push_back(static_cast<std::int32_t>(std::max_element(row, row + classes) - row));
  return predictions;
}

std::string TestResult::text() const {
  std::string text = fmt::format("loss {:.4f}", loss);
  for (const Measure& measure : measures)
    text += fmt::format("  {} {:.4f}", measure.name, measure.value);
  return text;
}

nlohmann::ordered_json TestResult::to_json(const std::string& prefix) const {
  nlohmann::ordered_json json = {{prefix + "loss", loss}};
  for (const Measure& measure : measures) json[prefix + measure.name] = measure.value;
  return json;
}

nlohmann::json RunTotals::to_json() const {
  return {{"exact_forward_seconds", exact_forward_seconds},
          {"exact_backward_seconds", exact_backward_seconds},
          {"late_loss", late_loss},
          {"late_steps", late_steps},
          {"data_seconds", data_seconds},
          {"eval_seconds", eval_seconds},
          {"checkpoint_seconds", checkpoint_seconds},
          {"forward_seconds", step_seconds.forward},
          {"backward_seconds", step_seconds.backward},
          {"probe_seconds", step_seconds.probe},
          {"optimizer_seconds", step_seconds.optimizer}};
}

void RunTotals::from_json(const nlohmann::json& state) {
  state.at("exact_forward_seconds").get_to(exact_forward_seconds);
  state.at("exact_backward_seconds").get_to(exact_backward_seconds);
  state.at("late_loss").get_to(late_loss);
  state.at("late_steps").get_to(late_steps);
  state.at("data_seconds").get_to(data_seconds);
  state.at("eval_seconds").get_to(eval_seconds);
  state.at("checkpoint_seconds").get_to(checkpoint_seconds);
  state.at("forward_seconds").get_to(step_seconds.forward);
  state.at("backward_seconds").get_to(step_seconds.backward);
  state.at("probe_seconds").get_to(step_seconds.probe);
  state.at("optimizer_seconds").get_to(step_seconds.optimizer);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

GradSink gradient_sink(const Model& model) {
  GradSink sink;
  for (const Parameter& parameter : model.graph.parameters().list())
    sink.full.push_back(parameter.gradient);
  return sink;
}

Session::Session(const RunConfig& config, const RunData& data)
    : config_(config),
      data_(data),
      ops_(make_counting_ops()),
      model_(build_model(model_options(config, data), data.train->item_shape(),
                         data.train->classes(), config.train.label_smoothing)),
      formula_({}) {
  if (data.limits.tokens > model_->max_positions)
    throw Error(ExitCode::kBadConfig,
                fmt::format("items have up to {} tokens, and the model has {} positions",
                            data.limits.tokens, model_->max_positions),
                "lower data.text.max_length, or raise model.max_positions of a new model");
  const std::int64_t items = std::max(config.micro_batch(), config.eval_batch());
  model_->graph.finish(*ops_, {.max_items = items,
                               .max_tokens = items * data.limits.tokens,
                               .max_masked = items * data.limits.masked});
  model_->graph.parameters().initialize(*ops_, config.seed);
  if (!config.model.pretrained.empty())
    pretrained_ = load_hf_weights(find_hf_files(config.model.pretrained).weights,
                                  model_options(config, data), *model_, *ops_);
  Loader loader(*data.train, train_loader_options(config));
  formula_ = make_formula(model_->graph, mean_tokens(loader.next()));
  steps_per_epoch_ = loader.steps_per_epoch();
  total_steps_ = vcas::total_steps(config, steps_per_epoch_);
  LoaderOptions probe_options = train_loader_options(config);
  probe_options.seed ^= kProbeSeed;
  trainer_ = std::make_unique<Trainer>(*model_, *ops_, trainer_options(config, total_steps_),
                                       [this, probe_options](std::int64_t first) {
                                         return std::make_unique<Loader>(*data_.train,
                                                                         probe_options, first);
                                       });
}

std::unique_ptr<CountOps> Session::make_counting_ops() {
  use_threads(config_);  // the device looks at it when it is made
  std::unique_ptr<Ops> ops = make_ops(config_.device);
  if (ops->name() == "cpu") ops = std::make_unique<MemoryLimit>(std::move(ops));
  if (std::unique_ptr<Profiler> profiler = make_profiler(ops->name())) {
    auto ranges = std::make_unique<RangeOps>(std::move(ops), std::move(profiler));
    ranges_ = ranges.get();
    ops = std::move(ranges);
  }
  return std::make_unique<CountOps>(std::move(ops));
}

// A few exact passes before the first step say what exact training costs, and make the first step
// as fast as the others. They leave gradients behind, which every step clears.
void Session::measure_exact_step() {
  const std::int64_t items = config_.micro_batch();
  Loader loader(*data_.train, train_loader_options(config_));
  const GradSink sink = gradient_sink(*model_);
  Graph& graph = model_->graph;
  Exec exec = graph.make_exec(config_.seed, 0, true);
  std::vector<double> forward, backward;
  const Batch& batch = loader.next();
  for (int pass = 0; pass <= kTimedPasses; ++pass) {  // the first warms up
    ops_->reset();
    ops_->set_phase(Phase::kForward);
    const double start = monotonic_seconds();
    model_->load(*ops_, batch, 0, items);
    graph.forward(exec);
    ops_->set_phase(Phase::kBackward);
    const double middle = monotonic_seconds();
    graph.backward(exec, {.sink = &sink});
    if (pass == 0) continue;
    forward.push_back(middle - start);
    backward.push_back(monotonic_seconds() - middle);
  }
  const double portions =
      static_cast<double>(config_.train.batch_size) / static_cast<double>(items);
  exact_backward_flops_ = ops_->flops(Phase::kBackward) / ops_->flops(Phase::kForward);
  totals_.exact_forward_seconds += portions * median(forward);
  totals_.exact_backward_seconds += portions * median(backward);
  ops_->reset();
}

StepReport Session::step() {
  if (exact_backward_flops_ == 0) measure_exact_step();
  if (!loader_)
    loader_ =
        std::make_unique<Loader>(*data_.train, train_loader_options(config_), trainer_->steps());
  const double start = monotonic_seconds();
  const Batch& batch = loader_->next();
  totals_.data_seconds += monotonic_seconds() - start;

  const std::vector<double> act_ratio = trainer_->controller().act_ratio();
  const std::vector<double> weight_ratio = trainer_->controller().weight_ratio();
  const StepReport report = [&] {
    const ProfiledRange range(ranges_, "step");
    return trainer_->step(batch);
  }();
  if (report.exact)
    formula_.add_exact_step();
  else
    formula_.add_sampled_step(act_ratio, weight_ratio);
  const double batch_share =
      static_cast<double>(config_.micro_batch()) / static_cast<double>(config_.train.batch_size);
  if (report.probed && config_.vcas.probe == "in_place")
    formula_.add_in_place_probe(config_.vcas.repeats, batch_share, trainer_->probed_entry_shares(),
                                act_ratio);
  else if (report.probed)
    formula_.add_separate_probe(config_.vcas.repeats, batch_share, act_ratio);

  totals_.step_seconds.forward += report.seconds.forward;
  totals_.step_seconds.backward += report.seconds.backward;
  totals_.step_seconds.probe += report.seconds.probe;
  totals_.step_seconds.optimizer += report.seconds.optimizer;
  if (report.exact && !report.measured) {
    totals_.exact_forward_seconds += report.seconds.forward;
    totals_.exact_backward_seconds += report.seconds.backward;
  }
  if (10 * report.step > 9 * total_steps_) {
    totals_.late_loss += report.loss;
    ++totals_.late_steps;
  } else {
    totals_.late_loss = 0;  // a fork may come from a run that had reached its end
    totals_.late_steps = 0;
  }
  return report;
}

std::optional<TestResult> Session::evaluate(const std::function<bool()>& stop) {
  const double start = monotonic_seconds();
  const ProfiledRange range(ranges_, "eval");
  Loader loader(*data_.test, eval_loader_options(config_, *data_.test));
  std::vector<float> logits;
  const bool accuracy_alone = data_.metrics == std::vector<std::string>{"accuracy"};
  const bool may_be_mixed_up =
      config_.model.head == "classification" && data_.test->classes() <= kMostMixedUp;
  std::vector<std::int32_t> labels;
  std::vector<double> targets;
  TestResult result;
  double terms = 0, right = 0;
  for (std::int64_t i = 0; i < loader.steps_per_epoch(); ++i) {
    if (stop()) return std::nullopt;
    const Batch& batch = loader.next();
    const Evaluation part =
        trainer_->evaluate(batch, accuracy_alone && !may_be_mixed_up ? nullptr : &logits);
    const auto weight = static_cast<double>(part.terms);
    result.items += part.items;
    result.loss += part.loss * weight;
    right += part.accuracy * weight;
    terms += weight;
    labels.insert(labels.end(), batch.labels.begin(), batch.labels.end());
    targets.insert(targets.end(), batch.targets.begin(), batch.targets.end());
  }
  result.loss /= terms;
  for (const std::string& name : data_.metrics)
    result.measures.push_back(
        {name, name == "accuracy" ? right / terms : measure(name, logits, labels, targets)});
  if (may_be_mixed_up)
    result.warning = mix_up_warning(predicted_classes(logits, data_.test->classes()), labels,
                                    data_.test->class_names());
  totals_.eval_seconds += monotonic_seconds() - start;
  return result;
}

std::vector<float> Session::predict(const Dataset& items) {
  LoaderOptions options = eval_loader_options(config_, items);
  options.limit = 0;
  Loader loader(items, options);
  std::vector<float> logits;
  for (std::int64_t i = 0; i < loader.steps_per_epoch(); ++i)
    trainer_->evaluate(loader.next(), &logits);
  return logits;
}

double Session::measure(const std::string& name, const std::vector<float>& logits,
                        const std::vector<std::int32_t>& labels,
                        const std::vector<double>& targets) const {
  const std::vector<double> numbers(logits.begin(), logits.end());
  if (name == "pearson") return pearson_correlation(numbers, targets);
  if (name == "spearman") return spearman_correlation(numbers, targets);
  const auto predictions = predicted_classes(logits, data_.test->classes());
  return name == "f1" ? f1_score(predictions, labels, data_.positive)
                      : matthews_correlation(predictions, labels);
}

std::int64_t Session::train_items() const {
  return config_.data.limit > 0 ? config_.data.limit : data_.train->size();
}

std::int64_t Session::test_items() const {
  const std::int64_t limit = config_.data.eval_limit;
  return limit > 0 ? std::min(limit, data_.test->size()) : data_.test->size();
}

double Session::epoch() const {
  return static_cast<double>(trainer_->steps()) / static_cast<double>(steps_per_epoch_);
}

double Session::flops(Phase phase) const {
  const auto earlier = earlier_flops_.find(phase);
  return ops_->flops(phase) + (earlier == earlier_flops_.end() ? 0 : earlier->second);
}

double Session::exact_step_seconds() const {
  const double backward = totals_.exact_backward_seconds / totals_.exact_forward_seconds;
  return (totals_.step_seconds.forward * (1 + backward) + totals_.step_seconds.optimizer) /
         static_cast<double>(trainer_->steps());
}

Savings Session::savings() const {
  Savings savings;
  const auto steps = static_cast<double>(trainer_->steps());
  if (steps == 0) return savings;
  const double forward = flops(Phase::kForward);
  const double backward = flops(Phase::kBackward) + flops(Phase::kProbe);
  const double exact_backward = forward * exact_backward_flops_;
  savings.backward_flops = 1 - backward / exact_backward;
  savings.flops = 1 - (forward + backward) / (forward + exact_backward);
  savings.formula = formula_.saved();
  savings.formula_backward = formula_.backward_saved();
  savings.time = 1 - totals_.step_seconds.total() / (steps * exact_step_seconds());
  return savings;
}

nlohmann::json Session::state() const {
  nlohmann::json flops_by_phase;
  for (const auto& [phase, name] : kTrainPhases) flops_by_phase[name] = flops(phase);
  return {{"trainer", trainer_->state()},
          {"totals", totals_.to_json()},
          {"flops", flops_by_phase},
          {"formula", formula_.to_json()}};
}

void Session::restore(const nlohmann::json& state) {
  try {
    trainer_->restore(state.at("trainer"));
    totals_.from_json(state.at("totals"));
    for (const auto& [phase, name] : kTrainPhases)
      earlier_flops_[phase] = state.at("flops").at(name).get<double>();
    formula_.from_json(state.at("formula"));
    loader_.reset();
  } catch (const nlohmann::json::exception& e) {
    throw Error(ExitCode::kBadData, fmt::format("the state of the run: {}", e.what()));
  }
  measure_exact_step();
}

}  // namespace vcas
