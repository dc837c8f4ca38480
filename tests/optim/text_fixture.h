// A trainer of a tiny BERT, or of a GPT for the head "lm", on one batch of random text.
#pragma once

#include <optional>

#include "kernels/decorators/count_ops.h"
#include "optim/methods/vcas.h"
#include "optim/trainer.h"
#include "tests/support/text_batch.h"

namespace vcas {

struct TextTrainer {
  static constexpr std::int64_t kItems = 8, kVocabulary = 11, kClasses = 3;

  CountOps ops;
  std::unique_ptr<Model> model;
  std::unique_ptr<Trainer> trainer;

  explicit TextTrainer(const std::string& head, std::int64_t micro_batch = 0,
                       const std::optional<VcasOptions>& vcas = {},  // empty: exact
                       std::unique_ptr<Ops> device = make_ops("cpu"), DType dtype = DType::kF32,
                       std::shared_ptr<Ranks> ranks = one_rank())
      : ops(std::move(device)) {
    std::vector<std::string> settings = {
        "type=gpt", "width=8",         "depth=2",
        "heads=2",  "max_positions=8", "vocabulary=" + std::to_string(kVocabulary)};
    if (head != "lm") {
      settings[0] = "type=bert";
      settings.push_back("head=" + head);
    }
    model = build_model(read_model_options(settings), {}, kClasses, 0.0, dtype);
    const std::int64_t items = micro_batch ? micro_batch : kItems;
    model->graph.finish(ops, {.max_items = items,
                              .max_tokens = 8 * items,
                              .max_masked = 8 * items,
                              .ranks = ranks->size()});
    model->graph.parameters().initialize(ops, 3);
    TrainerOptions options;
    options.total_steps = 40;
    options.batch = kItems;
    options.micro_batch = micro_batch;
    options.ranks = std::move(ranks);
    options.optimizer.kind.type = "sgd";
    options.schedule.kind.type = "constant";
    options.schedule.learning_rate = 0.1;
    if (vcas)
      *find_vcas(options.method) = *vcas;
    else
      options.method.type = "exact";
    trainer = std::make_unique<Trainer>(*model, ops, options, nullptr);
  }
};

class OneBatch final : public BatchSource {
 public:
  const Batch& next() override { return batch_; }

 private:
  Batch batch_ =
      random_text(TextTrainer::kItems, TextTrainer::kVocabulary, TextTrainer::kClasses, 2);
};

}  // namespace vcas
