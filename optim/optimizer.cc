#include "optim/optimizer.h"

#include "core/arena.h"

namespace vcas {
namespace {

Tensor range(const Tensor& slab, std::int64_t begin, std::int64_t end) {
  if (!slab) return {};
  char* data =
      static_cast<char*>(slab.data) + static_cast<std::size_t>(begin) * dtype_bytes(slab.dtype);
  return {data, slab.dtype, {end - begin}};
}

}  // namespace

Optimizer::Optimizer(Ops& ops, const Parameters& parameters, const OptimizerOptions& options)
    : kind_(options.kind),
      max_norm_(options.max_gradient_norm),
      gradients_(parameters.gradients()) {
  const Tensor values = parameters.masters();
  const Tensor rounded = parameters.values().dtype == DType::kBF16 ? parameters.values() : Tensor();
  const std::vector<std::string> names = kind_->state();
  const std::size_t slab = Arena::round_up(values.bytes());
  const bool predicts = options.clip == "predicted";
  buffer_ = Buffer(ops, names.size() * slab + (predicts ? sizeof(double) : 0));
  if (predicts) predicted_ = buffer_.at(names.size() * slab, DType::kF64, {1});
  for (std::size_t i = 0; i < names.size(); ++i)
    state_.push_back({names[i], buffer_.at(i * slab, values.dtype, values.shape)});

  const auto add_update = [&](std::int64_t begin, std::int64_t end, double weight_decay) {
    if (begin == end) return;
    Update& update = updates_.emplace_back(Update{.param = range(values, begin, end),
                                                  .rounded = range(rounded, begin, end),
                                                  .grad = range(gradients_, begin, end),
                                                  .weight_decay = weight_decay});
    for (const NamedTensor& tensor : state_)
      update.state.push_back(range(tensor.tensor, begin, end));
  };
  add_update(0, parameters.decayed_elements(), options.weight_decay);
  add_update(parameters.decayed_elements(), values.elements(), 0);
}

void Optimizer::squared_norm(Ops& ops, const Tensor& sum, const Tensor& earlier) {
  ops.enter("optimizer");
  ops.run(SumSquares{.sum = sum, .x = gradients_, .earlier = earlier});
}

void Optimizer::clip(Ops& ops, const Tensor& factor, const Tensor& squared_norm) {
  ops.run(ClipFactor{.factor = factor,
                     .predicted = predicted_,
                     .squared_norm = squared_norm,
                     .max_norm = max_norm_});
}

void Optimizer::step(Ops& ops, double learning_rate, const Tensor& clip_factor) {
  ++steps_;
  for (Update& update : updates_) {
    update.clip_factor = clip_factor;
    update.learning_rate = learning_rate;
    update.step = steps_;
    kind_->step(ops, update);
  }
}

}  // namespace vcas
