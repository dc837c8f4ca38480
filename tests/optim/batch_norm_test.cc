// Training of a network whose batch norms mix the items of a batch.
#include <cmath>

#include "optim/methods/variance_probe.h"
#include "tests/optim/trainer_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/model_fixture.h"

using namespace vcas;

namespace {

constexpr std::int64_t kItems = 32, kClasses = 3;

ModelFixture residual_network() {
  ModelFixture f(
      read_model_options({"type=resnet", "stem=cifar", "stages=[1, 1]", "widths=[6, 8]"}),
      {2, 8, 8}, kClasses, kItems, DType::kF64);
  // The last gain of a block is 0 at first.
  for (const Parameter& parameter : f.model->graph.parameters().list())
    if (parameter.name.ends_with(".norm.1.weight"))
      for (std::int64_t i = 0; i < parameter.value.elements(); ++i)
        parameter.value.ptr<double>()[i] = 0.5;
  return f;
}

// Images of batch `number`: noise, and a bright place of each class.
void load_batch(ModelFixture& f, std::uint64_t number) {
  const Tensor images = f.input("values"), labels = f.input("labels");
  const PhiloxAddress address = philox_address({9, Stream::kData, number, 0, 0});
  for (std::int64_t n = 0; n < kItems; ++n) {
    const auto label = static_cast<std::int32_t>(
        kClasses * philox_uniform(address, static_cast<std::uint64_t>(n)));
    labels.ptr<std::int32_t>()[n] = label;
    for (std::int64_t i = 0; i < images.width(); ++i) {
      const auto at = static_cast<std::uint64_t>(1000 + n * images.width() + i);
      images.ptr<float>()[n * images.width() + i] =
          static_cast<float>(0.7 * philox_normal(address, at) + (i / 20 == label ? 1 : 0));
    }
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

// Reads the sketches of a probe's exact backward, as if no layer mixed items.
double variance_of_items(VarianceProbe& probe, ModelFixture& f, Exec& exec,
                         const BackwardContext& context) {
  double sum = 0;
  auto& exact = static_cast<ExactLook&>(probe.exact_backward());
  f.model->graph.backward(exec, context);
  for (const GradientSketch& linear : exact.sketches.linears) {
    std::vector<double> gram(linear.gram.ptr<double>(),
                             linear.gram.ptr<double>() + linear.gram.elements());
    sum += variance_of_sum(gram, kItems);
  }
  return sum;
}

}  // namespace

TEST_CASE("V_s above batch norms is the variance of the gradient from batch to batch",
          "[probe][law]") {
  constexpr int kBatches = 200;
  ModelFixture f = residual_network();
  VarianceProbe probe(f.model->graph, *f.ops, *f.sampled, {.fraction = 1.0});
  GradientVariance gradients;
  double from_halves = 0, from_items = 0;
  for (int i = 0; i < kBatches; ++i) {
    load_batch(f, static_cast<std::uint64_t>(i));
    Exec exec = f.exec(0);
    f.model->graph.forward(exec);
    BackwardContext context = f.use(f.context(SamplingMode::kExact, 1, 1));
    f.ops->run(Fill{.y = f.model->graph.parameters().gradients(), .value = 0});
    context.hooks = &probe.exact_backward();
    probe.begin(1, 0, 1, 2);
    from_items += variance_of_items(probe, f, exec, context) / kBatches;
    probe.sampled_backwards(exec, context);
    const MeasuredBatch& measured = probe.result().at(0);
    for (const std::vector<double>& gram : measured.gram)
      from_halves += variance_of_sum(gram, kItems) / kBatches;
    gradients.add(f.model->graph);
  }
  const double want = gradients.result();
  INFO("halves " << from_halves / want << ", items " << from_items / want << " of the truth");
  CHECK(std::abs(from_halves / want - 1) < 0.25);
  // What makes the halves necessary.
  CHECK(from_items > 1.5 * want);
}

namespace {

const std::vector<std::string> kSettings = {"type=resnet", "stem=cifar", "stages=[1, 1]",
                                            "widths=[6, 8]"};

// Parameters, then running statistics, after some steps.
std::vector<float> trained(TrainerOptions options, std::int64_t steps) {
  constexpr std::int64_t kPixels = 2 * 6 * 6;
  const auto ops = make_ops("cpu");
  const auto model = build_model(read_model_options(kSettings), {2, 6, 6}, kClasses, 0.0);
  model->graph.finish(*ops, {.max_items = options.batch});
  model->graph.parameters().initialize(*ops, 1);
  Trainer trainer(*model, *ops, options, [&](std::int64_t first) {
    return std::make_unique<RandomBatches>(options.batch, kPixels, kClasses, 1000 + first);
  });
  RandomBatches batches(options.batch, kPixels, kClasses);
  while (trainer.steps() < steps) trainer.step(batches.next());
  std::vector<float> all;
  for (const Parameter& parameter : model->graph.parameters().stored())
    all.insert(all.end(), parameter.value.ptr<float>(),
               parameter.value.ptr<float>() + parameter.value.elements());
  return all;
}

}  // namespace

TEST_CASE("probes leave a network with batch norms as it is, running statistics too",
          "[trainer][probe]") {
  TrainerOptions options = TrainerFixture::defaults();
  vcas_of(options).sample = "rows";
  vcas_of(options).tau_w = 0;  // no ratio falls
  vcas_of(options).probe = GENERATE("in_place", "separate");
  TrainerOptions exact = options;
  exact.method.type = "exact";
  CHECK(trained(options, 8) == trained(exact, 8));
  vcas_of(options).tau_w = 10;
  CHECK(trained(options, 8) != trained(exact, 8));
}

TEST_CASE("sampling items of a network with batch norms is refused", "[trainer]") {
  const auto with = [](const auto& change) {
    TrainerOptions options = TrainerFixture::defaults();
    change(vcas_of(options));
    return trained(options, 1);
  };
  const std::string why = "this model has no gate: its layers mix the items of a batch";
  CHECK_THROWS_WITH(with([](VcasOptions& o) { o.sample = "items"; }),
                    "method.sample asks to sample items, and " + why);
  CHECK_THROWS_WITH(with([](VcasOptions& o) { o.act_ratio = {0.5}; }),
                    "method.act_ratio asks to sample items, and " + why);
  CHECK_NOTHROW(with([](VcasOptions& o) { o.weight_ratio = {0.5}; }));
}
