#include "optim/evaluator.h"

#include <algorithm>
#include <cmath>

namespace vcas {

double per_term(std::int64_t terms) {
  return 1.0 / static_cast<double>(std::max<std::int64_t>(terms, 1));
}

Evaluator::Evaluator(Model& model, CountOps& ops) : model_(model), ops_(ops) {
  const GraphLimits& limits = model.graph.limits();
  const auto terms = static_cast<std::size_t>(std::max(limits.max_items, limits.max_masked));
  losses_.resize(terms);
  correct_.resize(terms);
}

void Evaluator::add_losses(const std::string& what, double& loss, std::int64_t& correct) {
  const Tensor losses = model_.graph.tensor(model_.loss);
  ops_.copy_to_host(losses_.data(), losses.data, losses.bytes());
  if (model_.has_accuracy()) {
    const Tensor hits = model_.graph.saved(model_.loss, 0);
    ops_.copy_to_host(correct_.data(), hits.data, hits.bytes());
  }
  double sum = 0;
  for (std::int64_t i = 0; i < losses.rows(); ++i) {
    sum += losses_[static_cast<std::size_t>(i)];
    if (model_.has_accuracy()) correct += correct_[static_cast<std::size_t>(i)];
  }
  if (!std::isfinite(sum))
    throw Error(ExitCode::kDiverged,
                what + ": loss is " + (std::isnan(sum) ? "nan" : std::to_string(sum)) +
                    "; weights unchanged",
                "try a lower schedule.learning_rate, a longer schedule.warmup_ratio or "
                "optimizer.max_gradient_norm");
  loss += sum;
}

Evaluation Evaluator::evaluate(const Batch& batch, const std::string& what,
                               std::vector<float>* logits) {
  ops_.set_phase(Phase::kEvaluation);
  Evaluation out{.items = batch.items, .terms = model_.loss_terms(batch, 0, batch.items)};
  std::int64_t correct = 0;
  const std::int64_t largest = model_.graph.limits().max_items;
  for (std::int64_t first = 0; first < batch.items; first += largest) {
    model_.load(ops_, batch, first, std::min(largest, batch.items - first));
    Exec exec = model_.graph.make_exec(0, 0, false);
    model_.graph.forward(exec);
    add_losses(what, out.loss, correct);
    if (!logits) continue;
    const Tensor rows = model_.graph.tensor(model_.logits);
    logits->resize(logits->size() + static_cast<std::size_t>(rows.elements()));
    ops_.copy_to_host(logits->data() + logits->size() - rows.elements(), rows.data, rows.bytes());
  }
  out.loss *= per_term(out.terms);
  out.accuracy = static_cast<double>(correct) * per_term(out.terms);
  return out;
}

}  // namespace vcas
