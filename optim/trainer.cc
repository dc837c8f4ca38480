#include "optim/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

namespace vcas {

namespace {

class Stopwatch {
 public:
  // Seconds since the last lap.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// The loss is a mean over its terms; a batch in which nothing is masked has none.
double per_term(std::int64_t terms) {
  return 1.0 / static_cast<double>(std::max<std::int64_t>(terms, 1));
}

// Batches of separate probes have step numbers that training never reaches, so they share no
// dropout and no draw with it.
constexpr std::uint64_t kProbeSteps = std::uint64_t{1} << 39;

}  // namespace

Trainer::Trainer(Model& model, CountOps& ops, const TrainerOptions& options,
                 ProbeSource probe_source)
    : model_(model),
      ops_(ops),
      options_(options),
      probe_source_(std::move(probe_source)),
      optimizer_(ops, model.graph.parameters(), options.optimizer),
      schedule_(options.schedule, options.total_steps),
      controller_(options.vcas, model.graph.gates(),
                  static_cast<int>(model.graph.sampled_weights().size()), options.total_steps) {
  if (options_.micro_batch == 0) options_.micro_batch = options_.batch;
  for (const Parameter& parameter : model.graph.parameters().list())
    sink_.full.push_back(parameter.gradient);
  if (controller_.adapts())
    probe_ = std::make_unique<VarianceProbe>(model.graph, ops, options.vcas.probe_fraction,
                                             options.vcas.repeats);
  record_.kept_items.assign(static_cast<std::size_t>(model.graph.gates()), 0);
  record_.kept_rows.assign(model.graph.sampled_weights().size(), 0);
  context_.sink = &sink_;
  context_.selection =
      options.vcas.selection == "bernoulli" ? Selection::kBernoulli : Selection::kSystematic;
  context_.record = &record_;
  set_ratios();
  const GraphLimits& limits = model.graph.limits();
  const auto terms = static_cast<std::size_t>(std::max(limits.max_items, limits.max_masked));
  const auto micro_batches =
      static_cast<std::size_t>((options_.batch + options_.micro_batch - 1) / options_.micro_batch);
  queued_terms_.reserve(micro_batches);
  host_results_.resize(sizeof(double) +
                       micro_batches * terms * (sizeof(float) + sizeof(std::int32_t)));
  results_ = Buffer(ops, host_results_.size());
}

// The losses and hits of the batch that has just run are overwritten by the next one.
void Trainer::queue_losses() {
  const auto queue = [&](const Tensor& x) {
    if (x.elements() > 0) ops_.run(Copy{.y = results_.at(queued_bytes_, x.dtype, x.shape), .x = x});
    queued_bytes_ += x.bytes();
  };
  queue(model_.graph.tensor(model_.loss));
  if (model_.has_accuracy()) queue(model_.graph.saved(model_.loss, 0));
  queued_terms_.push_back(model_.graph.tensor(model_.loss).rows());
}

// Adds what is queued to `loss` and `correct`, and leaves the queue empty.
void Trainer::read_losses(const std::string& what, double& loss, std::int64_t& correct) {
  ops_.copy_to_host(host_results_.data(), results_.data(), queued_bytes_);
  const std::byte* next = host_results_.data() + sizeof(double);
  const auto take = [&](auto value) {
    std::memcpy(&value, next, sizeof value);
    next += sizeof value;
    return value;
  };
  double sum = 0;
  for (const std::int64_t terms : queued_terms_) {
    for (std::int64_t i = 0; i < terms; ++i) sum += take(float{});
    for (std::int64_t i = 0; i < terms && model_.has_accuracy(); ++i)
      correct += take(std::int32_t{});
  }
  queued_bytes_ = sizeof(double);
  queued_terms_.clear();
  if (!std::isfinite(sum))
    throw Error(ExitCode::kDiverged,
                what + ": loss is " + (std::isnan(sum) ? "nan" : std::to_string(sum)) +
                    "; weights unchanged",
                "try a lower schedule.learning_rate, a longer schedule.warmup_ratio or "
                "optimizer.max_gradient_norm");
  loss += sum;
}

void Trainer::set_ratios() {
  context_.act_ratio = controller_.act_ratio();
  context_.weight_ratio = controller_.weight_ratio();
  const auto below_one = [](double ratio) { return ratio < 1.0; };
  const bool samples =
      options_.vcas.enabled && (std::ranges::any_of(context_.act_ratio, below_one) ||
                                std::ranges::any_of(context_.weight_ratio, below_one));
  context_.mode = samples ? SamplingMode::kItemsAndRows : SamplingMode::kExact;
}

void Trainer::run_separate_probe() {
  ops_.set_phase(Phase::kProbe);
  const std::int64_t first = controller_.probes() * options_.vcas.repeats;
  const std::unique_ptr<BatchSource> source = probe_source_(first);
  GradSink nowhere;
  nowhere.full.resize(sink_.full.size());
  for (std::int64_t i = first; !probe_->complete(); ++i) {
    const Batch& batch = source->next();
    const std::int64_t items = std::min(batch.items, options_.micro_batch);
    model_.load(ops_, batch, 0, items);
    Exec exec =
        model_.graph.make_exec(options_.seed, kProbeSteps + static_cast<std::uint64_t>(i), true);
    model_.graph.forward(exec);
    BackwardContext probe_context = context_;
    probe_context.loss_scale = per_term(model_.loss_terms(batch, 0, items));
    probe_context.sink = &nowhere;
    probe_->exact_backward(exec, probe_context);
    probe_->sampled_backwards(exec, probe_context);
  }
}

void Trainer::check_gradient(double norm) const {
  if (std::isfinite(norm)) return;
  std::string culprit = "the sum of all gradients overflows";
  std::vector<float> host;
  for (const Parameter& parameter : model_.graph.parameters().list()) {
    host.resize(static_cast<std::size_t>(parameter.gradient.elements()));
    ops_.copy_to_host(host.data(), parameter.gradient.data, parameter.gradient.bytes());
    const auto bad =
        std::find_if(host.begin(), host.end(), [](float g) { return !std::isfinite(g); });
    if (bad == host.end()) continue;
    culprit = "gradient of " + parameter.name + " is " +
              (std::isnan(*bad) ? "nan" : std::to_string(*bad)) + " at element " +
              std::to_string(bad - host.begin());
    break;
  }
  throw Error(ExitCode::kDiverged,
              "step " + std::to_string(step_ + 1) + ": " + culprit + "; weights unchanged",
              "try a lower schedule.learning_rate, a longer schedule.warmup_ratio or "
              "optimizer.max_gradient_norm");
}

StepReport Trainer::step(const Batch& batch) {
  Graph& graph = model_.graph;
  StepReport report;
  report.step = step_ + 1;
  Stopwatch watch;
  const bool in_place = options_.vcas.probe == "in_place";
  // A probe in place that the run is too short to end would leave no state to save at the end.
  const bool ends = !in_place || step_ + options_.vcas.repeats <= options_.total_steps;
  if (!probing_ && probe_ && controller_.probe_due(step_) && ends) {
    probe_->begin(options_.seed, static_cast<std::uint64_t>(controller_.probes()));
    probing_ = true;
    if (!in_place) run_separate_probe();
  }
  report.seconds.probe += watch.lap();
  const bool measured = report.measured = probing_ && in_place;

  ops_.set_phase(Phase::kOptimizer);
  ops_.run(Fill{.y = graph.parameters().gradients(), .value = 0});
  report.seconds.optimizer += watch.lap();
  context_.loss_scale = per_term(model_.loss_terms(batch, 0, batch.items));
  report.exact = measured || context_.mode == SamplingMode::kExact;
  const auto micro_batches = (options_.batch + options_.micro_batch - 1) / options_.micro_batch;
  double loss = 0;
  std::int64_t correct = 0, micro = 0;
  for (std::int64_t first = 0; first < batch.items; first += options_.micro_batch, ++micro) {
    model_.load(ops_, batch, first, std::min(options_.micro_batch, batch.items - first));
    Exec exec = graph.make_exec(options_.seed,
                                static_cast<std::uint64_t>(step_ * micro_batches + micro), true);
    ops_.set_phase(Phase::kForward);
    graph.forward(exec);
    queue_losses();
    report.seconds.forward += watch.lap();

    ops_.set_phase(Phase::kBackward);
    if (measured && micro == 0) {
      probe_->exact_backward(exec, context_);
      report.seconds.backward += watch.lap();
      ops_.set_phase(Phase::kProbe);
      probe_->sampled_backwards(exec, context_);
      report.seconds.probe += watch.lap();
    } else {
      const SamplingMode mode = context_.mode;
      if (measured) context_.mode = SamplingMode::kExact;
      graph.backward(exec, context_);
      context_.mode = mode;
      report.seconds.backward += watch.lap();
    }
  }

  ops_.set_phase(Phase::kOptimizer);
  optimizer_.squared_norm(ops_, results_.at(0, DType::kF64, {1}));
  read_losses("step " + std::to_string(step_ + 1), loss, correct);
  report.loss = loss * context_.loss_scale;
  report.accuracy = static_cast<double>(correct) * context_.loss_scale;
  std::memcpy(&report.gradient_norm, host_results_.data(), sizeof(double));
  report.gradient_norm = std::sqrt(report.gradient_norm);
  check_gradient(report.gradient_norm);
  report.learning_rate = schedule_.learning_rate(step_);
  optimizer_.step(ops_, report.learning_rate, optimizer_.clip_scale(report.gradient_norm));
  report.seconds.optimizer += watch.lap();

  if (probing_ && probe_->complete()) {
    last_probe_ = probe_->result();
    probe_note_ = controller_.update(last_probe_);
    set_ratios();
    probing_ = false;
    report.probed = true;
  }
  report.seconds.probe += watch.lap();
  ++step_;
  return report;
}

Evaluation Trainer::evaluate(const Batch& batch, std::vector<float>* logits) {
  ops_.set_phase(Phase::kEvaluation);
  Evaluation out{.items = batch.items, .terms = model_.loss_terms(batch, 0, batch.items)};
  std::int64_t correct = 0;
  const std::int64_t largest = model_.graph.limits().max_items;
  for (std::int64_t first = 0; first < batch.items; first += largest) {
    model_.load(ops_, batch, first, std::min(largest, batch.items - first));
    Exec exec = model_.graph.make_exec(options_.seed, 0, false);
    model_.graph.forward(exec);
    queue_losses();
    read_losses("evaluation at step " + std::to_string(step_), out.loss, correct);
    if (!logits) continue;
    const Tensor rows = model_.graph.tensor(model_.logits);
    logits->resize(logits->size() + static_cast<std::size_t>(rows.elements()));
    ops_.copy_to_host(logits->data() + logits->size() - rows.elements(), rows.data, rows.bytes());
  }
  out.loss *= per_term(out.terms);
  out.accuracy = static_cast<double>(correct) * per_term(out.terms);
  return out;
}

std::vector<double> Trainer::probed_entry_shares() const {
  return probe_ ? probe_->entry_shares() : std::vector<double>();
}

std::size_t Trainer::planned_bytes() const {
  return model_.graph.memory().total() + optimizer_.bytes() + (probe_ ? probe_->bytes() : 0);
}

nlohmann::json Trainer::state() const {
  VCAS_CHECK(at_rest(), "state asked for in the middle of a probe");
  return {
      {"step", step_}, {"optimizer_steps", optimizer_.steps()}, {"vcas", controller_.to_json()}};
}

void Trainer::restore(const nlohmann::json& state) {
  step_ = state.at("step").get<std::int64_t>();
  optimizer_.set_steps(state.at("optimizer_steps").get<std::int64_t>());
  controller_.from_json(state.at("vcas"));
  set_ratios();
  probing_ = false;
}

}  // namespace vcas
