#include "optim/loss_queue.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace vcas {

LossQueue::LossQueue(Model& model, CountOps& ops, std::int64_t forwards)
    : model_(model), ops_(ops) {
  const GraphLimits& limits = model.graph.limits();
  const auto terms = static_cast<std::size_t>(std::max(limits.max_items, limits.max_masked));
  queued_terms_.reserve(static_cast<std::size_t>(forwards));
  host_.resize(sizeof(double) +
               static_cast<std::size_t>(forwards) * terms * (sizeof(float) + sizeof(std::int32_t)));
  buffer_ = Buffer(ops, host_.size());
}

void LossQueue::add() {
  ops_.enter("losses");
  const auto queue = [&](const Tensor& x) {
    if (x.elements() > 0) ops_.run(Copy{.y = buffer_.at(queued_bytes_, x.dtype, x.shape), .x = x});
    queued_bytes_ += x.bytes();
  };
  queue(model_.graph.tensor(model_.loss));
  if (model_.has_accuracy()) queue(model_.graph.saved(model_.loss, 0));
  queued_terms_.push_back(model_.graph.tensor(model_.loss).rows());
}

LossQueue::Sums LossQueue::read(const std::string& what) {
  ops_.copy_to_host(host_.data(), buffer_.data(), queued_bytes_);
  const std::byte* next = host_.data();
  const auto take = [&](auto value) {
    std::memcpy(&value, next, sizeof value);
    next += sizeof value;
    return value;
  };
  Sums sums;
  sums.number = take(double{});
  for (const std::int64_t terms : queued_terms_) {
    for (std::int64_t i = 0; i < terms; ++i) sums.loss += take(float{});
    for (std::int64_t i = 0; i < terms && model_.has_accuracy(); ++i)
      sums.correct += take(std::int32_t{});
  }
  queued_bytes_ = sizeof(double);
  queued_terms_.clear();
  if (!std::isfinite(sums.loss))
    throw Error(ExitCode::kDiverged,
                what + ": loss is " + (std::isnan(sums.loss) ? "nan" : std::to_string(sums.loss)) +
                    "; weights unchanged",
                "try a lower schedule.learning_rate, a longer schedule.warmup_ratio or "
                "optimizer.max_gradient_norm");
  return sums;
}

}  // namespace vcas
