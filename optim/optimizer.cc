#include "optim/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/arena.h"

namespace vcas {

Optimizer::Optimizer(Ops& ops, const Parameters& parameters, const OptimizerOptions& options,
                     std::vector<SlabRange> own)
    : kind_(options.kind), max_norm_(options.max_gradient_norm) {
  const Tensor values = parameters.masters();
  const Tensor rounded = parameters.values().dtype == DType::kBF16 ? parameters.values() : Tensor();
  const std::vector<std::string> names = kind_->state();
  if (std::set(names.begin(), names.end()).size() < names.size())
    throw Error(ExitCode::kBadConfig,
                fmt::format("optimizer.name={} has two states of one name: {}", kind_.type,
                            fmt::join(names, ", ")),
                "UpdateRule::state gives each a name of its own, for checkpoints");
  const std::size_t slab = Arena::round_up(values.bytes());
  const bool predicts = options.clip == "predicted";
  buffer_ = Buffer(ops, names.size() * slab + (predicts ? sizeof(double) : 0));
  if (predicts) predicted_ = buffer_.at(names.size() * slab, DType::kF64, {1});
  for (std::size_t i = 0; i < names.size(); ++i)
    state_.push_back({names[i], buffer_.at(i * slab, values.dtype, {parameters.elements()})});

  if (own.empty()) own.push_back({0, values.elements()});
  for (const auto& [begin, end] : own) {
    gradients_.push_back(parameters.gradients().range(begin, end));
    Update& update = updates_.emplace_back(
        Update{.param = values.range(begin, end),
               .rounded = rounded.range(begin, end),
               .grad = gradients_.back(),
               .weight_decay = options.weight_decay,
               .decayed = std::max<std::int64_t>(parameters.decayed_elements() - begin, 0)});
    for (const NamedTensor& tensor : state_)
      update.state.push_back(tensor.tensor.range(begin, end));
  }
}

void Optimizer::squared_norm(Ops& ops, const Tensor& sum, const Tensor& earlier) {
  ops.enter("optimizer");
  for (const Tensor& gradient : gradients_) {
    const bool first = &gradient == &gradients_.front();
    ops.run(SumSquares{
        .sum = sum, .x = gradient, .earlier = first ? earlier : Tensor(), .accumulate = !first});
  }
}

void Optimizer::clip(Ops& ops, const Tensor& factor, const Tensor& squared_norm) {
  ops.run(ClipFactor{.factor = factor,
                     .predicted = predicted_,
                     .squared_norm = squared_norm,
                     .max_norm = max_norm_});
}

void Optimizer::step(Ops& ops, double learning_rate, const Tensor& clip_factor) {
  const std::int64_t step = steps_ + 1;
  for (Update& update : updates_) {
    update.clip_factor = clip_factor;
    update.learning_rate = learning_rate;
    update.step = step;
    kind_->step(ops, update);
  }
  steps_ = step;  // a step that threw does not count
}

}  // namespace vcas
