// Trains a funnel with VCAS on random vectors, and evaluates it.
#include <cstdio>

#include "vcas/data/loader.h"
#include "vcas/data/synthetic.h"
#include "vcas/optim/trainer.h"

using namespace vcas;

int main() {
  constexpr std::int64_t kBatch = 32;
  const auto items = make_synthetic({.items = 4096});
  const auto test_items = make_synthetic({.items = 512, .first_item = 4096});
  const auto ops = make_ops("cpu");
  const auto model = build_model(read_model_options({"type=funnel", "width=128"}),
                                 items->item_shape(), items->classes(), /*label_smoothing=*/0);
  model->graph.finish(*ops, {.max_items = kBatch});
  model->graph.parameters().initialize(*ops, /*seed=*/1);
  TrainerOptions options{.total_steps = 600, .batch = kBatch};
  options.schedule.learning_rate = 3e-3;
  Trainer trainer(*model, *ops, options, nullptr);
  Loader batches(*items, {.batch = kBatch}, /*first_step=*/0, trainer.chooser());
  while (!trainer.done()) trainer.step(batches.next());

  Loader test(*test_items, {.batch = kBatch, .shuffle = false, .drop_last = false});
  double right = 0;
  for (std::int64_t i = 0; i < test.steps_per_epoch(); ++i) {
    const Evaluation evaluation = trainer.evaluate(test.next());
    right += evaluation.accuracy * static_cast<double>(evaluation.items);
  }
  const double accuracy = right / static_cast<double>(test_items->size());
  std::printf("test accuracy %.3f, %s\n", accuracy, trainer.method().progress().c_str());
  return accuracy > 0.5 ? 0 : 1;
}
