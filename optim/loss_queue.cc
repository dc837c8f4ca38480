#include "optim/loss_queue.h"

#include <cmath>
#include <cstring>

namespace vcas {

Error diverged(const std::string& message) {
  return Error(ExitCode::kDiverged, message,
               "try a lower schedule.learning_rate, a longer schedule.warmup_ratio or "
               "optimizer.max_gradient_norm");
}

void check_loss(double loss, double squared_norm, const std::string& what,
                const std::string& where) {
  if (std::isfinite(loss)) return;
  throw diverged(what + ": loss is " + (std::isnan(loss) ? "nan" : std::to_string(loss)) + where +
                 (std::isfinite(squared_norm) ? "" : "; weights unchanged"));
}

void check_weights_set(const Ops& ops, const Model& model) {
  if (ops.has_memory() && !model.graph.parameters().are_set())
    throw Error(ExitCode::kBadConfig, "the weights of the model are not set, and all are 0",
                "call Parameters::initialize after Graph::finish, or load weights");
}

// Whether a forward leaves what is read of it here.
static void check_model(const Model& model) {
  const Graph& graph = model.graph;
  if (graph.limits().max_items == 0)
    throw Error(ExitCode::kBadConfig, "training or evaluation before Graph::finish",
                "call finish once the graph is built");
  if (graph.dtype() == DType::kF64)
    throw Error(ExitCode::kBadConfig,
                "training and evaluation are in f32 or bf16, and the model is in f64",
                "f64 is for checks of gradients: build the model with another DType");
  if (model.logits.index < 0)
    throw Error(ExitCode::kBadConfig, "Model::logits is not set",
                "ModelKind::build sets it to the value that evaluations read");
  if (model.loss.index + 1 != std::ssize(graph.plan().nodes))
    throw Error(ExitCode::kBadConfig,
                "Model::loss is not the last node of the graph, where backward begins",
                "add it last; a layer of its own can add two losses up");
  const GraphNode& node = graph.plan().nodes.back();
  const ValueSpec& loss = graph.spec(model.loss);
  if (loss.width != 1 || loss.dtype != DType::kF32)
    throw Error(ExitCode::kBadConfig, node.name + " is no f32 [terms, 1], as losses are",
                "the layer's plan says so in `output` (docs/layer_api.md)");
  if (!model.has_accuracy) return;
  const SavedSpec* hits = node.plan.saved.empty() ? nullptr : &node.plan.saved[0];
  if (!hits || hits->width != 1 || hits->dtype != DType::kI32 || hits->layout != loss.layout)
    throw Error(ExitCode::kBadConfig,
                node.name + " saves no i32 [terms, 1] of hits, which the accuracy is made of",
                "set Model::has_accuracy to false, or save them as tensor 0");
}

LossQueue::LossQueue(Model& model, Ops& ops, std::int64_t forwards) : model_(model), ops_(ops) {
  check_model(model);
  const Graph& graph = model.graph;
  const auto terms = static_cast<std::size_t>(graph.plan().max_rows(graph.spec(model.loss).layout));
  step_bytes_ = Arena::round_up(kNumberBytes + static_cast<std::size_t>(forwards) * terms *
                                                   (sizeof(float) + sizeof(std::int32_t)));
  buffer_ = Buffer(ops, kSteps * step_bytes_);
  for (Step& step : steps_) {
    step.mailbox = ops.make_mailbox(step_bytes_);
    step.terms.reserve(forwards);
  }
}

void LossQueue::begin() {
  Step& step = steps_[filling_];
  step.bytes = kNumberBytes;
  step.terms.clear();
  step.weights.clear();
}

void LossQueue::add(std::span<const float> weights) {
  ops_.enter("losses");
  Step& step = steps_[filling_];
  const auto queue = [&](const Tensor& x) {
    VCAS_CHECK(step.bytes + x.bytes() <= step_bytes_, "more losses than a step has");
    if (x.elements() > 0)
      ops_.run(
          Copy{.y = buffer_.at(filling_ * step_bytes_ + step.bytes, x.dtype, x.shape), .x = x});
    step.bytes += x.bytes();
  };
  const Tensor loss = model_.graph.tensor(model_.loss);
  VCAS_CHECK(weights.empty() || std::ssize(weights) == loss.rows(), "one weight for each hit");
  queue(loss);
  if (model_.has_accuracy) queue(model_.graph.saved(model_.loss, 0));
  step.terms.push_back(loss.rows());
  step.weights.insert(step.weights.end(), weights.begin(), weights.end());
}

void LossQueue::send() {
  VCAS_CHECK(!full(), "losses of too many steps");
  steps_[filling_].mailbox->send(squared_norm().data, steps_[filling_].bytes);
  filling_ = (filling_ + 1) % kSteps;
  ++sent_;
}

bool LossQueue::arrived() const { return sent_ > 0 && steps_[first_sent()].mailbox->arrived(); }

LossQueue::Sums LossQueue::receive() {
  VCAS_CHECK(sent_ > 0, "losses of no step");
  Step& step = steps_[first_sent()];
  const std::byte* next = step.mailbox->receive();
  const auto take = [&](auto value) {
    std::memcpy(&value, next, sizeof value);
    next += sizeof value;
    return value;
  };
  Sums sums;
  sums.squared_norm = take(double{});
  sums.clip_factor = take(double{});
  auto weight = step.weights.begin();
  for (const std::int64_t terms : step.terms) {
    for (std::int64_t i = 0; i < terms; ++i) sums.loss += take(float{});
    for (std::int64_t i = 0; i < terms && model_.has_accuracy; ++i)
      sums.correct +=
          take(std::int32_t{}) * (step.weights.empty() ? 1.0 : static_cast<double>(*weight++));
  }
  --sent_;
  return sums;
}

}  // namespace vcas
