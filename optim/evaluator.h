// What a model says of batches, without training it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/batch.h"
#include "optim/loss_queue.h"

namespace vcas {

struct Evaluation {
  std::int64_t items = 0;
  std::int64_t terms = 0;  // of the loss: items, or masked positions
  double loss = 0;         // mean over the terms
  double accuracy = 0;     // likewise; 0 of a regression
};

class Evaluator {
 public:
  // The graph of `model` is finished in `ops`.
  Evaluator(Model& model, Ops& ops);

  // Without dropout. `logits` gets the logits appended, row by row. `what` is for messages.
  // Throws Error(kBadConfig) while the weights are not set.
  Evaluation evaluate(const Batch& batch, const std::string& what,
                      std::vector<float>* logits = nullptr);

 private:
  Model& model_;
  Ops& ops_;
  LossQueue losses_;
};

// The loss is a mean over its terms; a batch in which nothing is masked has none.
double per_term(double terms);

}  // namespace vcas
