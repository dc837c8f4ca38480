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
    : kind_(options.kind), gradients_(parameters.gradients()) {
  const Tensor values = parameters.masters();
  const Tensor rounded = parameters.values().dtype == DType::kBF16 ? parameters.values() : Tensor();
  const std::vector<std::string> names = kind_->state();
  const std::size_t slab = Arena::round_up(values.bytes());
  buffer_ = Buffer(ops, names.size() * slab);
  for (std::size_t i = 0; i < names.size(); ++i)
    state_.push_back({names[i], buffer_.at(i * slab, values.dtype, values.shape)});

  const auto add_update = [&](std::int64_t begin, std::int64_t end, double weight_decay) {
    if (begin == end) return;
    Update& update = updates_.emplace_back(Update{.param = range(values, begin, end),
                                                  .rounded = range(rounded, begin, end),
                                                  .grad = range(gradients_, begin, end),
                                                  .weight_decay = weight_decay,
                                                  .max_norm = options.max_gradient_norm});
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

void Optimizer::step(Ops& ops, double learning_rate, const Tensor& squared_norm) {
  ++steps_;
  for (Update& update : updates_) {
    update.squared_norm = squared_norm;
    update.learning_rate = learning_rate;
    update.step = steps_;
    kind_->step(ops, update);
  }
}

}  // namespace vcas
