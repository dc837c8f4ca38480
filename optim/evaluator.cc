#include "optim/evaluator.h"

#include <algorithm>

namespace vcas {

double per_term(double terms) { return 1 / std::max(terms, 1.0); }

Evaluator::Evaluator(Model& model, Ops& ops) : model_(model), ops_(ops), losses_(model, ops, 1) {}

Evaluation Evaluator::evaluate(const Batch& batch, const std::string& what,
                               std::vector<float>* logits) {
  check_weights_set(ops_, model_);
  ops_.enter_phase(Phase::kEvaluation);
  Evaluation out{.items = batch.items, .terms = model_.loss_terms(batch, 0, batch.items)};
  double correct = 0;
  const std::int64_t largest = model_.graph.limits().max_items;
  for (std::int64_t first = 0; first < batch.items; first += largest) {
    model_.load(ops_, batch, first, std::min(largest, batch.items - first));
    Exec exec = model_.graph.make_exec(0, 0, false);
    model_.graph.forward(exec);
    losses_.begin();
    losses_.add();
    losses_.send();
    const LossQueue::Sums sums = losses_.receive();
    check_loss(sums.loss, sums.squared_norm, what);
    out.loss += sums.loss;
    correct += sums.correct;
    if (!logits) continue;
    const Tensor rows = model_.graph.tensor(model_.logits);
    const std::size_t before = logits->size(), count = static_cast<std::size_t>(rows.elements());
    logits->resize(before + count);
    if (rows.dtype != DType::kBF16) {
      ops_.copy_to_host(logits->data() + before, rows.data, rows.bytes());
      continue;
    }
    const auto rounded = to_host<bfloat16>(ops_, rows);
    std::copy(rounded.begin(), rounded.end(), logits->begin() + before);
  }
  const double scale = per_term(static_cast<double>(out.terms));
  out.loss *= scale;
  out.accuracy = correct * scale;
  return out;
}

}  // namespace vcas
