// What a model is worth on test data, and what it predicts.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/ranks.h"
#include "optim/evaluator.h"
#include "tools/run_data.h"

namespace vcas {

struct Measure {
  std::string name;
  double value = 0;
};

struct TestResult {
  std::int64_t items = 0;
  double loss = 0;
  std::vector<Measure> measures;  // as measure_names
  std::string warning;            // of classes that seem mixed up; empty: there are none

  // The value of "loss" or of one of the measures.
  double value(const std::string& name) const;
  // "loss 0.3012  matthews 0.5531"
  std::string text() const;
  // {"eval_loss": 0.3012, "eval_matthews": 0.5531}, or with another prefix
  nlohmann::ordered_json to_json(const std::string& prefix) const;
};

// Evaluator::evaluate, or what stands for it.
using EvaluateBatch = std::function<Evaluation(const Batch&, std::vector<float>* logits)>;

// Whether a value of the measure is better than another: of a loss the lower one.
bool lower_is_better(const std::string& measure);
bool is_better(const std::string& measure, double value, double than);

// On the test data, of which each rank evaluates its share of the batches. All get the result,
// with the bits of one process. Empty when `stop` said so to a rank between two batches.
std::optional<TestResult> evaluate_tests(const RunConfig& config, const RunData& data,
                                         const EvaluateBatch& evaluate,
                                         const std::function<bool()>& stop, Ranks& ranks);

// Gives the logits of all items to `use`, batch by batch, in their order.
// Labels need not be known. All logits of many items and classes would not fit into memory.
void predict_items(const RunConfig& config, const Dataset& items, const EvaluateBatch& evaluate,
                   const std::function<void(const std::vector<float>& logits)>& use);

// The class of the largest logit of each row.
std::vector<std::int32_t> predicted_classes(const std::vector<float>& logits, std::int64_t classes);

}  // namespace vcas
