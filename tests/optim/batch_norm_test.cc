// Training of a network whose batch norms mix the items of a batch.
#include <cmath>

#include "optim/checkpoint.h"
#include "optim/methods/item_choice.h"
#include "optim/methods/variance_probe.h"
#include "tests/core/temporary_folder.h"
#include "tests/optim/trainer_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/check_error.h"
#include "tests/support/model_fixture.h"

using namespace vcas;

namespace {

constexpr std::int64_t kItems = 32, kClasses = 3;

ModelFixture residual_network(const std::string& stem = "cifar") {
  ModelFixture f(read_model_options({"type=resnet", "stem=" + stem, "stem_width=6", "stages=[1, 1]",
                                     "widths=[6, 8]"}),
                 {2, 8, 8}, kClasses, kItems, DType::kF64);
  // The last gain of a block is 0 at first.
  for (const Parameter& parameter : f.model->graph.parameters().list())
    if (parameter.name.ends_with(".norm.1.weight"))
      for (std::int64_t i = 0; i < parameter.value.elements(); ++i)
        parameter.value.ptr<double>()[i] = 0.5;
  return f;
}

// Images of batch `number`: noise, and a bright place of each class.
void load_batch(ModelFixture& f, std::uint64_t number, double brightness = 1) {
  const Tensor images = f.input("values"), labels = f.input("labels");
  const PhiloxAddress address = philox_address({9, Stream::kData, number, 0, 0});
  for (std::int64_t n = 0; n < kItems; ++n) {
    const auto label = static_cast<std::int32_t>(
        kClasses * philox_uniform(address, static_cast<std::uint64_t>(n)));
    labels.ptr<std::int32_t>()[n] = label;
    for (std::int64_t i = 0; i < images.width(); ++i) {
      const auto at = static_cast<std::uint64_t>(1000 + n * images.width() + i);
      images.ptr<float>()[n * images.width() + i] =
          static_cast<float>(0.7 * philox_normal(address, at) + (i / 20 == label ? brightness : 0));
    }
  }
}

// The other batch that a probe takes with batch `number`.
VarianceProbe::OtherForward other_forward(ModelFixture& f, std::uint64_t number,
                                          double brightness = 1) {
  return [&f, number, brightness] {
    load_batch(f, 2'000'000 + number, brightness);
    return f.forward(1);
  };
}

void train(ModelFixture& f, int steps, double brightness) {
  constexpr double kRate = 0.1;
  const Parameters& parameters = f.model->graph.parameters();
  for (int step = 0; step < steps; ++step) {
    load_batch(f, static_cast<std::uint64_t>(1'000'000 + step), brightness);
    Exec exec = f.forward(0);
    f.ops->run(Fill{.y = parameters.gradients(), .value = 0});
    f.model->graph.backward(exec, f.use(f.context(SamplingMode::kExact, 1, 1)));
    for (const Parameter& parameter : parameters.list())
      for (std::int64_t i = 0; i < parameter.value.elements(); ++i)
        parameter.value.ptr<double>()[i] -= kRate * parameter.gradient.ptr<double>()[i];
  }
}

// The variance of the gradients of sampled weights over batches.
class GradientVariance {
 public:
  void add(const Graph& graph) {
    std::size_t e = 0;
    ++batches_;
    for (const int weight : graph.sampled_weights()) {
      const Tensor& g = graph.parameters()[static_cast<std::size_t>(weight)].gradient;
      sum_.resize(std::max(sum_.size(), e + static_cast<std::size_t>(g.elements())));
      square_.resize(sum_.size());
      for (std::int64_t j = 0; j < g.elements(); ++j, ++e) {
        sum_[e] += g.ptr<double>()[j];
        square_[e] += g.ptr<double>()[j] * g.ptr<double>()[j];
      }
    }
  }
  double result() const {
    double variance = 0;
    for (std::size_t e = 0; e < sum_.size(); ++e)
      variance += (square_[e] - sum_[e] * sum_[e] / batches_) / (batches_ - 1);
    return variance;
  }

 private:
  std::vector<double> sum_, square_;
  double batches_ = 0;
};

// By the sketches of a probe's exact backward, as if no layer mixed items.
double variance_of_items(VarianceProbe& probe, ModelFixture& f, Exec& exec,
                         const BackwardContext& context) {
  double sum = 0;
  std::vector<Tensor*> grams;
  for (GradientSketch& linear : static_cast<ExactLook&>(probe.exact_backward()).sketches.linears) {
    linear.gram = {nullptr, DType::kF64, {kItems, kItems}};
    grams.push_back(&linear.gram);
  }
  const Buffer memory(*f.ops, grams);
  f.model->graph.backward(exec, context);
  for (Tensor* gram : grams) {
    sum += variance_of_sum({gram->ptr<double>(), gram->ptr<double>() + gram->elements()}, kItems);
    *gram = {};
  }
  return sum;
}

}  // namespace

TEST_CASE("V_s above batch norms is the variance of the gradient from batch to batch",
          "[probe][law]") {
  constexpr int kBatches = 200;
  // A trained network has gradients of gains, and items that differ in all of their few pixels.
  // Bright images are learnt well: then few items have nearly all of the gradient.
  const auto [stem, steps, brightness] =
      GENERATE(std::tuple("cifar", 0, 1.0), std::tuple("cifar", 60, 1.0),
               std::tuple("imagenet", 60, 1.0), std::tuple("cifar", 300, 4.0));
  ModelFixture f = residual_network(stem);
  train(f, steps, brightness);
  VarianceProbe probe(f.model->graph, *f.ops, *f.sampled, {.fraction = 1.0});
  GradientVariance gradients;
  double from_two = 0, from_items = 0;
  for (int i = 0; i < kBatches; ++i) {
    load_batch(f, static_cast<std::uint64_t>(i), brightness);
    Exec exec = f.forward(0);
    BackwardContext context = f.use(f.context(SamplingMode::kExact, 1, 1));
    f.ops->run(Fill{.y = f.model->graph.parameters().gradients(), .value = 0});
    context.hooks = &probe.exact_backward();
    probe.begin(1, 0, 1, 2);
    from_items += variance_of_items(probe, f, exec, context) / kBatches;
    gradients.add(f.model->graph);
    probe.sampled_backwards(exec, context,
                            other_forward(f, static_cast<std::uint64_t>(i), brightness));
    const MeasuredBatch& measured = probe.result().at(0);
    for (const std::vector<double>& gram : measured.gram)
      from_two += variance_of_sum(gram, kItems) / kBatches;
  }
  const double want = gradients.result();
  INFO(stem << " after " << steps << " steps, brightness " << brightness << ": two batches "
            << from_two / want << ", items " << from_items / want << " of the truth");
  CHECK(std::abs(from_two / want - 1) < 0.1);
  // What makes another batch necessary.
  CHECK(from_items > 1.5 * want);
}

namespace {

const std::vector<std::string> kSettings = {"type=resnet", "stem=cifar", "stages=[1, 1]",
                                            "widths=[6, 8]"};

// A trainer of a network with batch norms, on random batches.
struct NormedTraining {
  std::unique_ptr<Ops> ops = make_ops("cpu");
  std::unique_ptr<Model> model =
      build_model(read_model_options(kSettings), {2, 6, 6}, kClasses, 0.0);
  TrainerOptions options;
  std::unique_ptr<Trainer> trainer;

  explicit NormedTraining(TrainerOptions wanted) : options(std::move(wanted)) {
    options.method->prepare(*model);
    model->graph.finish(*ops, {.max_items = options.batch});
    model->graph.parameters().initialize(*ops, 1);
    trainer = std::make_unique<Trainer>(*model, *ops, options, [this](std::int64_t first) {
      return std::make_unique<RandomBatches>(options.batch, 1000 + first, Place{}, kPixels,
                                             kClasses);
    });
  }

  void run(std::int64_t steps) {
    RandomBatches batches(options.batch, trainer->steps(), {}, kPixels, kClasses);
    while (trainer->steps() < steps) losses.push_back(trainer->step(batches.next()).loss);
  }

  std::vector<double> losses;

 private:
  static constexpr std::int64_t kPixels = 2 * 6 * 6;
};

// Parameters, the state, and the losses of all steps.
std::vector<float> trained(const TrainerOptions& options, std::int64_t steps) {
  NormedTraining training(options);
  training.run(steps);
  std::vector<float> all = stored_numbers(*training.model);
  for (const double loss : training.losses) all.push_back(static_cast<float>(loss));
  return all;
}

}  // namespace

TEST_CASE("probes leave a network with batch norms as it is, running statistics and losses too",
          "[trainer][probe]") {
  TrainerOptions options = TrainerFixture::defaults();
  vcas_of(options).tau_act = vcas_of(options).tau_w = 0;  // no ratio falls
  vcas_of(options).probe = GENERATE("in_place", "separate");
  TrainerOptions exact = options;
  exact.method.type = "exact";
  CHECK(trained(options, 8) == trained(exact, 8));
  vcas_of(options).tau_w = 10;
  CHECK(trained(options, 8) != trained(exact, 8));
}

TEST_CASE("training data of one batch have no other one to probe batch norms with",
          "[trainer][probe]") {
  TrainerOptions options = TrainerFixture::defaults();
  vcas_of(options).controller = GENERATE("paper", "budget");
  vcas_of(options).tau_act = vcas_of(options).tau_w = 10;
  options.items = options.batch;
  TrainerOptions exact = options;
  exact.method.type = "exact";
  CHECK(trained(options, 8) == trained(exact, 8));
  const NormedTraining training(options);
  CHECK(training.trainer->method().complaint().message ==
        "a probe above BatchNorm compares two batches, and one has all 16 items of the training "
        "data: all keep ratios stay 1 and VCAS saves nothing");
  ++options.items;
  CHECK(trained(options, 8) != trained(exact, 8));
}

TEST_CASE("probes above batch norms without a source of batches are refused", "[trainer]") {
  TrainerOptions options = TrainerFixture::defaults();
  std::unique_ptr<Ops> ops = make_ops("cpu");
  std::unique_ptr<Model> model = build_model(read_model_options(kSettings), {2, 6, 6}, kClasses, 0);
  model->graph.finish(*ops, {.max_items = options.batch});
  check_error([&] { Trainer(*model, *ops, options, nullptr); }, ExitCode::kBadConfig,
              "probes of a model with BatchNorm need batches besides those of training",
              "give the Trainer a probe_source, or set method.act_ratio and method.weight_ratio");
  vcas_of(options).act_ratio = vcas_of(options).weight_ratio = {0.5};
  CHECK_NOTHROW(Trainer(*model, *ops, options, nullptr));
}

TEST_CASE("V_s and items' parts above batch norms do not depend on what gates drop", "[probe]") {
  ModelFixture f = residual_network();
  VarianceProbe probe(f.model->graph, *f.ops, *f.sampled, {.fraction = 1.0});
  std::vector<std::vector<std::vector<double>>> grams;
  for (const double ratio : {1.0, 0.5}) {
    load_batch(f, 1);
    Exec exec = f.forward(0);
    BackwardContext context = f.use(f.context(SamplingMode::kItemsAndRows, ratio, 1));
    context.hooks = &probe.exact_backward();
    probe.begin(1, 0, 1, 2);
    f.model->graph.backward(exec, context);
    probe.sampled_backwards(exec, context, other_forward(f, 1));
    const MeasuredBatch& measured = probe.result().at(0);
    CHECK((measured.v_act[0] > 0) == (ratio < 1));
    grams.push_back(measured.gram);
    // Each row of a gradient has a share of the batch's means: an item without a gradient of its
    // own would seem to have a part.
    const std::vector<double>& score = measured.item_score.back();
    for (std::size_t i = 0; i < kItems; ++i)
      for (std::size_t j = 0; j < kItems; ++j) {
        const double want = i == j ? measured.gram[0][0] * std::pow(score[i] / score[0], 2) : 0;
        CHECK(std::abs(measured.gram[0][i * kItems + j] - want) <= 1e-12 * want);
      }
  }
  CHECK(grams[0] == grams[1]);
}

namespace {

TrainerOptions sampling_items(const std::string& controller) {
  TrainerOptions options = TrainerFixture::defaults();
  VcasOptions& method = vcas_of(options);
  method.controller = controller;
  method.tau_act = 2;
  method.update_every = 4;
  method.s_step = 0.3;
  return options;
}

}  // namespace

TEST_CASE("items of a network with batch norms are sampled, by either controller", "[trainer]") {
  TrainerOptions options = sampling_items(GENERATE("paper", "budget"));
  vcas_of(options).sample = "items";
  TrainerOptions exact = options;
  exact.method.type = "exact";
  const std::vector<float> sampled = trained(options, 20);
  CHECK(sampled != trained(exact, 20));
  vcas_of(options).echo = 3;
  CHECK(trained(options, 20) != sampled);
}

TEST_CASE("a resumed run that samples above batch norms has the bits of the whole run",
          "[trainer]") {
  const TrainerOptions options = sampling_items(GENERATE("paper", "budget"));
  NormedTraining whole(options);
  whole.run(24);
  for (std::int64_t step : {9, 14}) {
    const TemporaryFolder folder;
    NormedTraining first(options), second(options);
    first.run(step);
    while (!first.trainer->at_rest()) first.run(++step);
    save_checkpoint(folder.path() / "saved", *first.trainer, first.trainer->state(), {});
    second.trainer->restore(load_checkpoint(folder.path() / "saved", *second.trainer));
    second.run(24);
    CHECK(stored_numbers(*second.model) == stored_numbers(*whole.model));
    CHECK(second.trainer->state() == whole.trainer->state());
  }
}

TEST_CASE("what leaves out items without echoes is refused above batch norms", "[trainer]") {
  for (const char* type : {"uniform", "selective_backprop", "upper_bound"}) {
    TrainerOptions options = TrainerFixture::defaults();
    options.method.type = type;
    CHECK_THROWS_WITH(trained(options, 1),
                      std::string("method.type=") + type +
                          ": resnet.stem.norm mixes the items of a batch, so dropping items would "
                          "bias the others");
  }
}

TEST_CASE("items are in the order of labels, but in a network with batch norms",
          "[batch_norm][item_choice]") {
  const TrainerFixture apart(TrainerFixture::defaults());
  CHECK(label_run(apart.model->graph, 24) == 24);
  CHECK(label_run(apart.model->graph, 192) == kMostItemsCompared);
  const NormedTraining mixed(TrainerFixture::defaults());
  CHECK(label_run(mixed.model->graph, 24) == 0);
}
