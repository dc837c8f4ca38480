// Training in bf16: layers read rounded parameters, an optimizer updates those in f32.
#include <cmath>

#include "optim/checkpoint.h"
#include "tests/core/temporary_folder.h"
#include "tests/optim/text_fixture.h"
#include "tests/optim/trainer_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/fewer_cases.h"

using namespace vcas;

namespace {

TrainerFixture fixture(const TrainerOptions& options, DType dtype = DType::kBF16) {
  return TrainerFixture(options, 0.1, make_ops("emu"), dtype);
}

TrainerOptions sampling(int steps) {
  TrainerOptions options = TrainerFixture::defaults();
  options.total_steps = steps;
  vcas_of(options).tau_act = vcas_of(options).tau_w = 0.1;
  return options;
}

double mean_loss(const std::vector<StepReport>& reports, std::size_t first, std::size_t last) {
  double sum = 0;
  for (std::size_t i = first; i < last; ++i) sum += reports[i].loss;
  return sum / static_cast<double>(last - first);
}

template <class T>
std::vector<float> numbers(const Tensor& tensor) {
  return {tensor.ptr<T>(), tensor.ptr<T>() + tensor.elements()};
}

// How many of the values are not the masters, rounded.
int values_apart(const Model& model) {
  const Parameters& parameters = model.graph.parameters();
  const auto values = numbers<bfloat16>(parameters.values());
  const auto masters = numbers<float>(parameters.masters());
  int apart = 0;
  for (std::size_t i = 0; i < masters.size(); ++i)
    apart += values[i] != static_cast<float>(bfloat16(masters[i]));
  return apart;
}

}  // namespace

TEST_CASE("a ViT trains with VCAS in bf16 as it does in f32", "[trainer][bf16]") {
  TrainerOptions options = sampling(30);
  options.schedule.learning_rate = 1e-2;
  TrainerFixture narrow = fixture(options), wide(options, 0.1, make_ops("cpu"));
  const auto a = narrow.run(30), b = wide.run(30);
  CHECK(narrow.vcas().controller().probes() == 10);
  CHECK(narrow.vcas().controller().act_ratio().front() < 1);
  // Before the first probe both are exact, on the same batches and masks: what differs is rounding.
  for (std::size_t i = 0; i < 3; ++i) CHECK(std::abs(a[i].loss - b[i].loss) <= 0.005 * b[i].loss);
  // Later draws differ, as the probes that led to them do.
  CHECK(mean_loss(a, 20, 30) < 0.9 * mean_loss(a, 0, 10));
  CHECK(std::abs(mean_loss(a, 20, 30) - mean_loss(b, 20, 30)) <= 0.05 * mean_loss(b, 20, 30));
}

TEST_CASE("a BERT trains with VCAS in bf16 as it does in f32", "[trainer][bf16][text]") {
  VcasOptions vcas;
  vcas.act_ratio = {0.5, 0.8};
  vcas.weight_ratio = {0.5};
  for (const std::string& head :
       cases_to_run<std::string>({"classification", "regression", "mlm", "lm"})) {
    INFO(head);
    const auto losses = [&](DType dtype) {
      OneBatch source;
      TextTrainer text(head, 0, vcas, make_ops("emu"), dtype);
      const double before = text.trainer->evaluate(source.next()).loss;
      for (int step = 0; step < 20; ++step) text.trainer->step(source.next());
      std::vector<float> logits;
      const double after = text.trainer->evaluate(source.next(), &logits).loss;
      for (const float logit : logits) CHECK(std::isfinite(logit));
      return std::pair(before, after);
    };
    const auto [before, after] = losses(DType::kBF16);
    const auto [before_f32, after_f32] = losses(DType::kF32);
    CHECK(std::abs(before - before_f32) <= 0.02 * before_f32);
    CHECK(after < 0.9 * before);
    CHECK(std::abs(after - after_f32) <= 0.1 * before_f32);
  }
}

TEST_CASE("an MLP trains in bf16", "[trainer][bf16]") {
  const auto ops = make_ops("emu");
  const auto model = build_model(read_model_options({"type=mlp", "width=16", "depth=2"}), {64}, 4,
                                 0.0, DType::kBF16);
  model->graph.finish(*ops, {.max_items = 16});
  model->graph.parameters().initialize(*ops, 7);
  TrainerOptions options = sampling(60);
  options.optimizer.kind.type = "sgd";
  options.schedule.learning_rate = 0.1;
  Trainer trainer(*model, *ops, options, nullptr);
  RandomBatches source(16);
  std::vector<StepReport> reports;
  while (!trainer.done()) reports.push_back(trainer.step(source.next()));
  CHECK(mean_loss(reports, 40, 60) < 0.9 * mean_loss(reports, 0, 20));
  CHECK(values_apart(*model) == 0);
}

TEST_CASE("values are the masters rounded, from the first step on", "[trainer][bf16]") {
  TrainerFixture f = fixture(sampling(4));
  const Parameters& parameters = f.model->graph.parameters();
  CHECK(parameters.values().dtype == DType::kBF16);
  CHECK(parameters.masters().dtype == DType::kF32);
  CHECK(parameters.gradients().dtype == DType::kF32);
  CHECK(values_apart(*f.model) == 0);
  const auto before = f.weights();
  f.run(4);
  CHECK(f.weights() != before);
  CHECK(values_apart(*f.model) == 0);
}

TEST_CASE("parameters of f32 have no second copy", "[trainer][bf16]") {
  const TrainerFixture wide = fixture(sampling(1), DType::kF32), narrow = fixture(sampling(1));
  const Parameters& parameters = wide.model->graph.parameters();
  const auto elements = static_cast<std::size_t>(parameters.values().elements());
  CHECK(parameters.masters().data == parameters.values().data);
  CHECK(parameters.bytes() == 2 * sizeof(float) * elements);
  const Parameters& rounded = narrow.model->graph.parameters();
  CHECK(rounded.bytes() == (2 * sizeof(float) + sizeof(bfloat16)) *
                               static_cast<std::size_t>(rounded.values().elements()));
}

TEST_CASE("a bf16 run goes on from its checkpoint with the same bits", "[trainer][bf16]") {
  const TemporaryFolder folder;
  const TrainerOptions options = sampling(16);
  TrainerFixture whole = fixture(options), first = fixture(options), second = fixture(options);
  whole.run(16);
  first.run(9);
  REQUIRE(first.trainer->at_rest());
  save_checkpoint(checkpoint_folder(folder.path(), 9), *first.trainer, first.trainer->state(), {});
  second.model->graph.parameters().initialize(*second.ops, 8);
  second.trainer->restore(load_checkpoint(folder.path() / "checkpoint-9", *second.trainer));
  CHECK(second.weights() == first.weights());
  CHECK(values_apart(*second.model) == 0);
  second.run(16);
  CHECK(second.weights() == whole.weights());
}

TEST_CASE("weights that are loaded alone are rounded for the layers", "[bf16]") {
  const TemporaryFolder folder;
  TrainerFixture saved = fixture(sampling(1)), loaded = fixture(sampling(1));
  saved.model->graph.parameters().initialize(*saved.ops, 8);
  save_checkpoint(folder.path() / "a", *saved.trainer, {}, {});
  REQUIRE(loaded.weights() != saved.weights());
  load_weights(SafetensorsFile(folder.path() / "a/model.safetensors"), *loaded.model, *loaded.ops);
  CHECK(loaded.weights() == saved.weights());
  CHECK(values_apart(*loaded.model) == 0);
}
