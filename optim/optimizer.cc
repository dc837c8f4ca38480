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
    : options_(options),
      values_(parameters.masters()),
      gradients_(parameters.gradients()),
      decayed_(parameters.decayed_elements()) {
  if (parameters.values().dtype == DType::kBF16) rounded_ = parameters.values();
  std::vector<std::string> names = {"first_moment", "second_moment"};
  if (options.name == "sgd") names = {"momentum"};
  const std::size_t slab = Arena::round_up(values_.bytes());
  buffer_ = Buffer(ops, names.size() * slab);
  for (std::size_t i = 0; i < names.size(); ++i)
    state_.push_back({names[i], buffer_.at(i * slab, values_.dtype, values_.shape)});
}

void Optimizer::squared_norm(Ops& ops, const Tensor& sum, const Tensor& earlier) {
  ops.enter("optimizer");
  ops.run(SumSquares{.sum = sum, .x = gradients_, .earlier = earlier});
}

void Optimizer::step(Ops& ops, double learning_rate, const Tensor& squared_norm) {
  ++steps_;
  step_range(ops, 0, decayed_, learning_rate, options_.weight_decay, squared_norm);
  step_range(ops, decayed_, values_.elements(), learning_rate, 0, squared_norm);
}

void Optimizer::step_range(Ops& ops, std::int64_t begin, std::int64_t end, double learning_rate,
                           double weight_decay, const Tensor& squared_norm) {
  if (begin == end) return;
  const Tensor param = range(values_, begin, end), grad = range(gradients_, begin, end);
  const Tensor rounded = range(rounded_, begin, end);
  const Tensor first = range(state_[0].tensor, begin, end);
  if (options_.name == "sgd") {
    ops.run(SgdStep{.param = param,
                    .rounded = rounded,
                    .momentum = first,
                    .grad = grad,
                    .squared_norm = squared_norm,
                    .learning_rate = learning_rate,
                    .mu = options_.momentum,
                    .weight_decay = weight_decay,
                    .max_norm = options_.max_gradient_norm});
    return;
  }
  ops.run(AdamStep{.param = param,
                   .rounded = rounded,
                   .first_moment = first,
                   .second_moment = range(state_[1].tensor, begin, end),
                   .grad = grad,
                   .squared_norm = squared_norm,
                   .learning_rate = learning_rate,
                   .beta1 = options_.beta1,
                   .beta2 = options_.beta2,
                   .eps = options_.eps,
                   .weight_decay = weight_decay,
                   .max_norm = options_.max_gradient_norm,
                   .step = steps_,
                   .decoupled = options_.name == "adamw"});
}

}  // namespace vcas
