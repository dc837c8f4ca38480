// A trainer of a tiny model on random batches.
#pragma once

#include <cstdlib>

#include "kernels/decorators/count_ops.h"
#include "optim/methods/vcas.h"
#include "optim/trainer.h"

namespace vcas {

// Batch `step` depends on the step alone: class means plus noise, so near that many items stay
// hard. A rank has its share of the items.
class RandomBatches final : public BatchSource {
 public:
  static constexpr std::int64_t kClasses = 4, kPixels = 64;

  explicit RandomBatches(std::int64_t items, std::int64_t first = 0, const Place& place = {},
                         std::int64_t width = kPixels, std::int64_t classes = kClasses)
      : width_(width), classes_(classes), step_(first) {
    batch_.items = items / place.size;
    first_item_ = place.rank * batch_.items;
    batch_.values.resize(static_cast<std::size_t>(batch_.items * width));
    batch_.labels.resize(static_cast<std::size_t>(batch_.items));
  }
  const Batch& next() override {
    const PhiloxAddress noise =
        philox_address({3, Stream::kData, static_cast<std::uint64_t>(step_), 1, 0});
    const PhiloxAddress mean = philox_address({3, Stream::kData, 0, 2, 0});
    for (std::int64_t n = 0; n < batch_.items; ++n) {
      const std::int64_t item = first_item_ + n;
      const auto label = static_cast<std::int64_t>(
          philox_uniform(noise, (1u << 30) + static_cast<std::uint64_t>(item)) *
          static_cast<float>(classes_));
      batch_.labels[static_cast<std::size_t>(n)] = static_cast<std::int32_t>(label);
      for (std::int64_t c = 0; c < width_; ++c)
        batch_.values[static_cast<std::size_t>(n * width_ + c)] = static_cast<float>(
            0.5 * philox_normal(mean, static_cast<std::uint64_t>(label * width_ + c)) +
            philox_normal(noise, static_cast<std::uint64_t>(item * width_ + c)));
    }
    ++step_;
    return batch_;
  }

 private:
  std::int64_t width_, classes_, step_, first_item_;
  Batch batch_;
};

inline VcasOptions& vcas_of(TrainerOptions& options) { return *find_vcas(options.method); }

inline const Vcas& vcas_of(const Trainer& trainer) {
  return dynamic_cast<const Vcas&>(trainer.method());
}

struct TrainerFixture {
  std::unique_ptr<CountOps> ops;
  std::unique_ptr<Model> model;
  std::unique_ptr<Trainer> trainer;
  TrainerOptions options;

  explicit TrainerFixture(TrainerOptions wanted, double dropout = 0,
                          std::unique_ptr<Ops> device = make_ops("cpu"), DType dtype = DType::kF32)
      : TrainerFixture(std::move(wanted),
                       {"type=vit", "width=16", "depth=2", "heads=2", "patch=4", "ffn_ratio=2",
                        "dropout=" + std::to_string(dropout)},
                       std::move(device), dtype) {}

  TrainerFixture(TrainerOptions wanted, const std::vector<std::string>& model_text,
                 std::unique_ptr<Ops> device, DType dtype = DType::kF32)
      : ops(std::make_unique<CountOps>(std::move(device))), options(std::move(wanted)) {
    model =
        build_model(read_model_options(model_text), {1, 8, 8}, RandomBatches::kClasses, 0.0, dtype);
    options.method->prepare(*model);
    const Place place = options.ranks->place();
    model->graph.finish(
        *ops, {.max_items = options.micro_batch ? options.micro_batch : options.batch / place.size,
               .ranks = place.size});
    model->graph.parameters().initialize(*ops, options.seed);
    trainer = std::make_unique<Trainer>(*model, *ops, options, [this, place](std::int64_t first) {
      return std::make_unique<RandomBatches>(options.batch, 100000 + first, place);
    });
  }

  static TrainerOptions defaults() {
    TrainerOptions options;
    options.total_steps = 40;
    options.batch = 16;
    options.seed = 7;
    options.schedule.learning_rate = 3e-3;
    vcas_of(options).controller = "paper";
    vcas_of(options).update_every = 3;
    return options;
  }

  const Vcas& vcas() const { return vcas_of(*trainer); }

  // The reports of the steps from the present one to `until`.
  std::vector<StepReport> run(std::int64_t until) {
    RandomBatches source(options.batch, trainer->steps(), options.ranks->place());
    std::vector<StepReport> reports;
    while (trainer->steps() < until) reports.push_back(trainer->step(source.next()));
    return reports;
  }

  std::vector<float> weights() const {
    const Parameters& parameters = model->graph.parameters();
    const float* const values = parameters.masters().ptr<float>();
    return {values, values + parameters.elements()};
  }
};

}  // namespace vcas
