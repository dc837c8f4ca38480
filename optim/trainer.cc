#include "optim/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/json_value.h"
#include "core/progress.h"
#include "core/xxh3.h"
#include "optim/methods/item_choice.h"

namespace vcas {

namespace {

// The items [first, first + items).
std::span<const float> weights_of(const Batch& batch, std::int64_t first, std::int64_t items) {
  if (batch.weights.empty()) return {};
  return std::span(batch.weights).subspan(first, static_cast<std::size_t>(items));
}

// The part of each bucket that a rank sums and updates.
std::vector<SlabRange> own_parts(const std::vector<GradientBucket>& buckets, const Place& place) {
  std::vector<SlabRange> own;
  for (const GradientBucket& bucket : buckets) {
    const std::int64_t part = (bucket.end - bucket.begin) / place.size;
    own.push_back({bucket.begin + place.rank * part, bucket.begin + (place.rank + 1) * part});
  }
  return own;
}

// What a configuration would say of the options.
struct GivenSettings {
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  Part<MethodKind> method;

  void fields(Setting& v) {
    v.section("optimizer", optimizer, "");
    v.section("schedule", schedule, "");
    v.section("method", method, "");
  }
};

// The options with what one rank takes at once.
TrainerOptions settled(TrainerOptions options) {
  const int ranks = options.ranks->size();
  check_shares(options.batch, options.micro_batch, ranks);
  if (options.total_steps < 1)
    throw Error(ExitCode::kBadConfig,
                fmt::format("TrainerOptions::total_steps is {}", options.total_steps),
                "the learning rate falls over so many steps: there is at least one");
  GivenSettings given{options.optimizer, options.schedule, options.method};
  read_config(given, {.documents = {{"TrainerOptions", to_json(given).dump()}}});
  if (options.micro_batch == 0) options.micro_batch = options.batch / ranks;
  return options;
}

constexpr const char* kTakeState = "take one that Trainer::state has made";

// A number of steps in the state of a trainer.
std::int64_t steps_of(const nlohmann::json& state, const char* key) {
  constexpr std::int64_t kMost = std::int64_t{1} << 38;  // random numbers of probes begin above
  const nlohmann::json& value = state.at(key);
  if (json_holds<std::int64_t>(value))
    if (const auto steps = value.get<std::int64_t>(); steps >= 0 && steps <= kMost) return steps;
  throw Error(ExitCode::kBadData,
              fmt::format("the state of a trainer: \"{}\" is {}, and no number of steps", key,
                          value.dump()),
              kTakeState);
}

}  // namespace

void check_shares(std::int64_t batch, std::int64_t micro_batch, int ranks) {
  if (batch < 1)
    throw Error(ExitCode::kBadConfig,
                fmt::format("train.batch_size must be above 0, got {}", batch));
  if (micro_batch < 0)
    throw Error(ExitCode::kBadConfig,
                fmt::format("train.micro_batch must not be negative, got {}", micro_batch));
  const std::int64_t each = std::max<std::int64_t>(micro_batch, 1);
  if (ranks == 1 || batch % (ranks * each) == 0) return;
  std::vector<std::int64_t> fitting;
  for (std::int64_t number = 1; number * each <= batch; ++number)
    if (batch % (number * each) == 0) fitting.push_back(number);
  throw Error(ExitCode::kBadConfig,
              fmt::format("train.batch_size {} cannot be shared by {} ranks{}", batch, ranks,
                          micro_batch == 0 ? std::string()
                                           : fmt::format(" in micro-batches of {}", micro_batch)),
              fitting.empty()
                  ? "train.batch_size must be a multiple of train.micro_batch"
                  : fmt::format("numbers of ranks that fit: {}", fmt::join(fitting, ", ")));
}

class Trainer::Stopwatch {
 public:
  // Seconds since the last lap.
  double lap() {
    const double now = monotonic_seconds();
    return now - std::exchange(last_, now);
  }

 private:
  double last_ = monotonic_seconds();
};

Trainer::Trainer(Model& model, Ops& ops, const TrainerOptions& options,
                 Training::ProbeSource probe_source)
    : model_(model),
      ops_(ops),
      options_(settled(options)),
      place_(options_.ranks->place()),
      micro_batches_((options_.batch / place_.size + options_.micro_batch - 1) /
                     options_.micro_batch),
      evaluator_(model, ops),
      losses_(model, ops, micro_batches_),
      exchange_(ops.make_exchange(*options_.ranks)),
      buckets_(place_.size == 1
                   ? std::vector<GradientBucket>()
                   : model.graph.gradient_buckets(options.bucket_bytes /
                                                  static_cast<std::int64_t>(sizeof(float)))),
      optimizer_(ops, model.graph.parameters(), options.optimizer, own_parts(buckets_, place_)),
      schedule_(options.schedule, options.total_steps),
      norms_(options.optimizer.skip_deviations),
      gradients_(model.graph.parameters().gradient_list()) {
  const GraphLimits& limits = model.graph.limits();
  if (limits.ranks != place_.size)
    throw Error(
        ExitCode::kBadConfig,
        fmt::format("a graph finished for {} ranks, and there are {}", limits.ranks, place_.size),
        "give GraphLimits and TrainerOptions the same ranks");
  if (options_.micro_batch > limits.max_items)
    throw Error(ExitCode::kBadConfig,
                fmt::format("a forward of {} items, and the graph has room for {}",
                            options_.micro_batch, limits.max_items),
                "finish it with a larger GraphLimits::max_items, or set "
                "TrainerOptions::micro_batch");
  context_.gradients.tensors = gradients_;
  context_.on_bucket = [this](const GradientBucket& bucket) {
    const Tensor& slab = model_.graph.parameters().gradients();
    exchange_->begin_sum_parts(slab.range(bucket.begin, bucket.end),
                               options_.sends_bf16 ? DType::kBF16 : slab.dtype);
  };
  const Training training{.model = model,
                          .ops = ops,
                          .ranks = options_.ranks,
                          .seed = options.seed,
                          .total_steps = options.total_steps,
                          .batch = options_.batch / place_.size,
                          .micro_batch = options_.micro_batch,
                          .items = options.items,
                          .probe_source = std::move(probe_source)};
  method_ = options_.method->make(training);
  if (!method_)
    throw Error(ExitCode::kBadConfig,
                fmt::format("method.type \"{}\" made no method", options_.method.type),
                "MethodKind::make returns one (optim/methods/method.h)");
  if (chooser())
    check_one_term(model, "method.type=" + options_.method.type, "choose another method.type");
}

void Trainer::forget_sampled_passes() {
  std::erase_if(passes_, [](const TrainingPass& pass) { return pass.kind == PassKind::kSampled; });
}

Trainer::TrainingPass& Trainer::pass_of(PassKind kind, const BatchShape& batch) {
  // Batches come again in some twenty sizes of texts. A step has a first, a middle and a last
  // micro-batch, and so has the last step of an epoch.
  constexpr std::ptrdiff_t kMostOfKind = 32;
  const auto found = std::ranges::find_if(passes_, [&](const TrainingPass& pass) {
    return pass.kind == kind && pass.batch == batch && pass.loss_scale == context_.loss_scale &&
           pass.adds_gradients == context_.gradients.adds &&
           pass.sends_gradients != context_.buckets.empty();
  });
  if (found != passes_.end()) return *found;
  if (std::ranges::count(passes_, kind, &TrainingPass::kind) == kMostOfKind)
    passes_.erase(std::ranges::find(passes_, kind, &TrainingPass::kind));
  return passes_.emplace_back(TrainingPass{.kind = kind,
                                           .batch = batch,
                                           .loss_scale = context_.loss_scale,
                                           .adds_gradients = context_.gradients.adds,
                                           .sends_gradients = !context_.buckets.empty()});
}

// Runs `body`, a forward and a backward, and adds their times to `seconds`.
// Where the host knows all sizes beforehand, a device can repeat the last such pass instead.
// It gets that as one piece of work (Ops::repeat).
// `body` itself adds the time of its forward. In a repeated pass that is a share of the whole.
template <class Body>
void Trainer::repeat_pass(PassKind kind, const Body& body, StepSeconds& seconds, Stopwatch& watch) {
  const BatchShape batch = model_.graph.batch();
  if (!method_->repeats(kind) || !batch.known || !model_.graph.repeatable()) {
    body();
    seconds.backward += watch.lap();
    return;
  }
  TrainingPass& pass = pass_of(kind, batch);
  bool called = false;
  const auto noted = [&] {
    body();
    called = true;
  };
  const double forward_before = seconds.forward;
  ops_.repeat(pass.recording, std::ref(noted));
  const double rest = watch.lap();
  if (!called) {
    model_.graph.note_forward();
    seconds.forward += pass.forward_share * rest;
    seconds.backward += (1 - pass.forward_share) * rest;
    return;
  }
  seconds.backward += rest;
  const double forward = seconds.forward - forward_before;
  if (pass.forward_share == 0) pass.forward_share = forward / (forward + rest);
}

// Which tensor's gradient is not finite, and where. Empty: all are finite.
std::string Trainer::bad_gradient() {
  gather(model_.graph.parameters().gradients());
  for (const Parameter& parameter : model_.graph.parameters().list()) {
    const auto host = to_host<float>(ops_, parameter.gradient);
    const auto bad = std::ranges::find_if(host, [](float g) { return !std::isfinite(g); });
    if (bad != host.end())
      return "gradient of " + parameter.name + " is " +
             (std::isnan(*bad) ? "nan" : std::to_string(*bad)) + " at element " +
             std::to_string(bad - host.begin());
  }
  return {};
}

// The factor of each term in the step's loss.
double Trainer::loss_scale(const Batch& batch) {
  // Weights stand for the items that were dropped.
  const auto terms = static_cast<double>(model_.loss_terms(batch, 0, batch.items) + batch.dropped);
  if (model_.graph.spec(model_.loss).layout.fixed())
    return per_term(terms * place_.size);  // shares are equal
  gathered_.resize(place_.size);
  options_.ranks->gather_all({&terms, 1}, gathered_);
  return per_term(std::accumulate(gathered_.begin(), gathered_.end(), 0.0));
}

void Trainer::gather(const Tensor& slab) {
  for (const GradientBucket& bucket : buckets_)
    exchange_->begin_gather_parts(slab.range(bucket.begin, bucket.end));
  exchange_->end();
}

void Trainer::gather_state() {
  method_->gather();
  gather(model_.graph.parameters().masters());
  for (const NamedTensor& state : optimizer_.state()) gather(state.tensor);
}

// The part of a step that left out all items of this rank.
void Trainer::add_nothing() {
  ops_.run(Fill{.y = model_.graph.parameters().gradients(), .value = 0});
  for (const GradientBucket& bucket : buckets_) context_.on_bucket(bucket);
}

// The host looks, and waits for the gradient then. All ranks see the same norm.
bool Trainer::is_outlier() {
  if (!norms_.looks()) return false;
  double squared_norm = 0;
  ops_.copy_to_host(&squared_norm, losses_.squared_norm().data, sizeof squared_norm);
  return std::isfinite(squared_norm) && norms_.take(std::sqrt(squared_norm));
}

// Each rank updates its own parts of the buckets, whose sums are on their way.
void Trainer::update(StepReport& report, Stopwatch& watch) {
  ops_.enter_phase(Phase::kOptimizer);
  const Parameters& parameters = model_.graph.parameters();
  exchange_->end();
  exchange_->sum(parameters.state_values(), 1.0 / place_.size);  // running statistics
  report.seconds.exchange += watch.lap();
  optimizer_.squared_norm(ops_, losses_.squared_norm(), losses_.last_squared_norm());
  report.seconds.optimizer += watch.lap();
  exchange_->sum(losses_.squared_norm());
  report.seconds.exchange += watch.lap();
  report.learning_rate = schedule_.learning_rate(step_);
  report.skipped = is_outlier();
  if (report.skipped) {
    ops_.run(Fill{.y = losses_.clip_factor(), .value = 0});
  } else {
    optimizer_.clip(ops_, losses_.clip_factor(), losses_.squared_norm());
    optimizer_.step(ops_, report.learning_rate, losses_.clip_factor());
  }
  report.seconds.optimizer += watch.lap();
  gather(parameters.values());
  report.seconds.exchange += watch.lap();
}

// Whether `batch` is one of a step of this trainer.
void Trainer::check_batch(const Batch& batch) {
  const std::int64_t share = options_.batch / place_.size;
  if (batch.items > share)
    throw Error(ExitCode::kBadConfig,
                fmt::format("a batch of {} items, and steps have {}", batch.items, share),
                "give Loader and Trainer the same batch");
  if (batch.items == 0 && batch.dropped == 0 && place_.size == 1)
    throw Error(ExitCode::kBadConfig, "a batch without items", "give Trainer what Loader gives");
  check_weights_set(ops_, model_);
  if (chooser() && !chooser()->asked())
    throw Error(ExitCode::kBadConfig,
                fmt::format("method.type={} leaves items out of batches, and no loader has asked "
                            "it which",
                            options_.method.type),
                "make the Loader with trainer.chooser()");
  if (model_.labels.index < 0) return;
  const auto unknown = std::ranges::find_if(batch.labels, [](int label) { return label < 0; });
  if (unknown == batch.labels.end()) return;
  const std::int64_t place = unknown - batch.labels.begin();
  throw Error(ExitCode::kBadData,
              fmt::format("item {} has no label; training needs one",
                          batch.ids.empty() ? place : batch.ids.at(place)),
              "leave it out of the training data");
}

const StepReport& Trainer::queue(const Batch& batch) {
  if (full())
    throw Error(ExitCode::kBadConfig, "Trainer::queue of too many steps",
                "call Trainer::finish while Trainer::full");
  check_batch(batch);
  losses_.begin();
  Graph& graph = model_.graph;
  StepReport report{.step = step_ + 1, .items = batch.items, .dropped = batch.dropped};
  Stopwatch watch;
  method_->begin_step(step_);
  report.seconds.probe += watch.lap();
  report.exact = method_->next(0) != PassKind::kSampled && batch.dropped == 0;
  report.measured = method_->next(0) == PassKind::kMeasured;
  VCAS_CHECK(!report.measured || batch.dropped == 0, "a measured step lacks items");
  context_.loss_scale = loss_scale(batch);
  report.seconds.exchange += watch.lap();
  // Micro-batches are counted over all ranks, so random numbers do not depend on their number.
  const std::int64_t first_pass = (step_ * place_.size + place_.rank) * micro_batches_;
  std::int64_t micro = 0;
  for (std::int64_t first = 0; first < batch.items; first += options_.micro_batch, ++micro) {
    const std::int64_t items = std::min(options_.micro_batch, batch.items - first);
    model_.load(ops_, batch, first, items);
    Exec exec = graph.make_exec(options_.seed, first_pass + micro, true);
    const PassKind kind = method_->next(micro);
    context_.gradients.adds = micro > 0;
    context_.buckets = {};
    if (first + items == batch.items) context_.buckets = buckets_;
    context_.hooks = method_->hooks(kind);
    exec.keeps_norms = method_->keeps_norms(kind);
    exec.updates_state = true;
    const auto pass = [&] {
      ops_.enter_phase(Phase::kForward);
      graph.forward(exec);
      report.seconds.forward += watch.lap();
      ops_.enter_phase(Phase::kBackward);
      graph.backward(exec, context_);
    };
    repeat_pass(kind, pass, report.seconds, watch);
    method_->end_pass(batch, first, items);
    ops_.enter_phase(Phase::kForward);
    losses_.add(weights_of(batch, first, items));
    report.seconds.forward += watch.lap();
    if (kind != PassKind::kMeasured) continue;
    ops_.enter_phase(Phase::kProbe);
    method_->after_pass(exec, context_);
    report.seconds.probe += watch.lap();
  }

  context_.buckets = {};
  if (batch.items == 0) add_nothing();
  update(report, watch);
  report.probed = method_->end_step();
  if (report.probed) forget_sampled_passes();
  report.seconds.probe += watch.lap();
  losses_.send();  // last: a step that threw must leave none to receive
  ++step_;
  return queued_.emplace_back(Queued{report, context_.loss_scale}).report;
}

StepReport Trainer::step(const Batch& batch) {
  if (!queued_.empty())
    throw Error(ExitCode::kBadConfig, "Trainer::step while another is queued",
                "call Trainer::finish first");
  queue(batch);
  return finish();
}

StepReport Trainer::finish() {
  if (queued_.empty())
    throw Error(ExitCode::kBadConfig, "Trainer::finish of no step", "Trainer::queue begins one");
  auto [report, loss_scale] = queued_.front();
  queued_.erase(queued_.begin());
  Stopwatch watch;
  const LossQueue::Sums sums = losses_.receive();
  const double own[] = {sums.loss, sums.correct, report.seconds.forward + report.seconds.backward,
                        static_cast<double>(report.items)};
  gathered_.resize(std::size(own) * static_cast<std::size_t>(place_.size));
  options_.ranks->gather_all(own, gathered_);
  double loss = 0, correct = 0, seconds = 0, longest = 0, items = 0;
  std::string where;
  for (int rank = 0; rank < place_.size; ++rank) {
    const double* const its = &gathered_[std::size(own) * static_cast<std::size_t>(rank)];
    loss += its[0];
    correct += its[1];
    seconds += its[2];
    longest = std::max(longest, its[2]);
    items += its[3];
    if (place_.size > 1 && !std::isfinite(its[0]))
      where += fmt::format("{}{}", where.empty() ? " on rank " : ", ", rank);
  }
  const std::int64_t all_items = place_.size * (report.items + report.dropped);
  report.items = static_cast<std::int64_t>(items);
  report.dropped = all_items - report.items;
  report.exact &= report.dropped == 0;
  if (seconds > 0) report.imbalance = longest * place_.size / seconds;
  check_loss(loss, sums.squared_norm, "step " + std::to_string(report.step), where);
  report.loss = loss * loss_scale;
  report.accuracy = correct * loss_scale;
  report.gradient_norm = std::sqrt(sums.squared_norm);
  report.clip_factor = sums.clip_factor;
  if (!std::isfinite(report.gradient_norm)) {
    const std::string bad =
        queued_.empty() ? bad_gradient() : "the gradient is not finite (the next one replaced it)";
    if (bad.empty())
      throw Error(ExitCode::kDiverged,
                  fmt::format("step {}: the gradient of an earlier step was not finite, and all "
                              "later steps are left out",
                              report.step),
                  "give Trainer::restore the present Trainer::state, or an earlier one");
    throw diverged(fmt::format("step {}: {}; weights unchanged", report.step, bad));
  }
  report.seconds.optimizer += watch.lap();
  return report;
}

Evaluation Trainer::evaluate(const Batch& batch, std::vector<float>* logits) {
  return evaluator_.evaluate(batch, "evaluation at step " + std::to_string(step_), logits);
}

void Trainer::check_ranks() {
  if (place_.size == 1) return;
  const auto bytes = to_host<std::byte>(ops_, model_.graph.parameters().values());
  const auto own = static_cast<double>(xxh3(bytes) >> 11);  // a double holds 53 bits
  const std::vector<double> all = options_.ranks->gather_all({&own, 1});
  std::string others;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] != all[0]) others += fmt::format("{}{}", others.empty() ? "" : ", ", rank);
  if (!others.empty())
    throw InternalError(
        fmt::format("after step {} the weights of rank {} are not those of rank 0", step_, others));
}

std::size_t Trainer::planned_bytes() const {
  return model_.graph.memory().total() + optimizer_.bytes() + method_->bytes() + losses_.bytes();
}

nlohmann::json Trainer::state() const {
  if (!at_rest() || !queued_.empty())
    throw Error(ExitCode::kBadConfig, "Trainer::state in the middle of a measurement or step",
                "finish all steps, and wait until Trainer::at_rest");
  nlohmann::json state = {
      {"step", step_},
      {"optimizer_steps", optimizer_.steps()},
      {"method", {{"type", options_.method.type}, {"state", method_->state()}}}};
  if (const Tensor& predicted = optimizer_.predicted()) {
    double squared_norm = 0;
    ops_.copy_to_host(&squared_norm, predicted.data, sizeof squared_norm);
    state["predicted_squared_norm"] = squared_norm;
  }
  if (norms_.looks()) state["norms"] = norms_.state();
  return state;
}

void Trainer::restore(const nlohmann::json& state) try {
  if (!queued_.empty())
    throw Error(ExitCode::kBadConfig, "Trainer::restore while a step is queued",
                "call Trainer::finish first");
  const std::int64_t step = steps_of(state, "step"),
                     optimizer_steps = steps_of(state, "optimizer_steps");
  const Tensor& predicted = optimizer_.predicted();
  const double squared_norm = predicted ? state.value("predicted_squared_norm", 0.0) : 0;
  // A fork may look for outliers where the run before it did not.
  if (norms_.looks() && state.contains("norms")) norms_.restore(state.at("norms"));
  // Older programs wrote the state of VCAS alone. A fork may train by another method.
  const nlohmann::json method = state.value(
      "method", nlohmann::json{{"type", "vcas"}, {"state", state.value("vcas", nlohmann::json())}});
  if (method.at("type") == options_.method.type) method_->restore(method.at("state"));
  // A state that is refused has moved no step.
  optimizer_.set_steps(optimizer_steps);
  step_ = step;
  ops_.run(Fill{.y = losses_.last_squared_norm(), .value = 0});  // forgets a step that diverged
  if (predicted) ops_.copy_to_device(predicted.data, &squared_norm, sizeof squared_norm);
  forget_sampled_passes();
} catch (const nlohmann::json::exception& e) {
  throw Error(ExitCode::kBadData, fmt::format("the state of a trainer: {}", e.what()), kTakeState);
}

}  // namespace vcas
