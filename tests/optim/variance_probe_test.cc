#include "optim/methods/variance_probe.h"

#include <algorithm>
#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/model_fixture.h"
#include "tests/support/watched_ops.h"

using namespace vcas;

namespace {

constexpr int kRepeats = 2;
constexpr std::int64_t kItems = 8, kClasses = 3;

ModelFixture make_fixture(std::unique_ptr<Ops> ops = make_ops("cpu")) {
  return ModelFixture(read_model_options({"type=vit", "width=16", "depth=2", "heads=2", "patch=4"}),
                      {1, 8, 8}, kClasses, kItems, DType::kF64, std::move(ops));
}

// Other images and labels for batch i.
void load_batch(ModelFixture& f, int i) {
  const Tensor input = f.input("values");
  const PhiloxAddress address =
      philox_address({9, Stream::kData, static_cast<std::uint64_t>(i), 0, 0});
  for (std::int64_t e = 0; e < input.elements(); ++e)
    input.ptr<float>()[e] =
        static_cast<float>(philox_normal(address, static_cast<std::uint64_t>(e)));
  const Tensor labels = f.input("labels");
  const PhiloxAddress classes =
      philox_address({9, Stream::kData, static_cast<std::uint64_t>(i), 1, 0});
  for (std::int64_t n = 0; n < labels.elements(); ++n)
    labels.ptr<std::int32_t>()[n] = static_cast<std::int32_t>(
        kClasses * philox_uniform(classes, static_cast<std::uint64_t>(n)));
}

struct Means {  // over the batches of a probe
  double v_s = 0, v_act = 0;
  std::vector<double> v_s_linear, v_w;
};

Means mean_of(const std::vector<MeasuredBatch>& batches) {
  const std::size_t linears = batches[0].gram.size();
  Means mean{.v_s_linear = std::vector<double>(linears), .v_w = std::vector<double>(linears)};
  for (const MeasuredBatch& batch : batches)
    for (std::size_t k = 0; k < linears; ++k) {
      mean.v_s_linear[k] += variance_of_sum(batch.gram[k], batch.items) / kRepeats;
      mean.v_act += batch.v_act[k] / kRepeats;
      mean.v_w[k] += batch.v_w[k] / kRepeats;
    }
  for (const double v_s : mean.v_s_linear) mean.v_s += v_s;
  return mean;
}

VarianceProbe probe_of(ModelFixture& f, double fraction) {
  return VarianceProbe(f.model->graph, *f.ops, *f.sampled,
                       VarianceProbe::Options{.fraction = fraction, .most_passes = kRepeats});
}

Means run_probe(ModelFixture& f, VarianceProbe& probe, std::uint64_t number,
                const PassSettings& context) {
  probe.begin(1, number, kRepeats, kRepeats);
  for (int i = 0; i < kRepeats; ++i) {
    load_batch(f, i);
    Exec exec = f.forward(static_cast<std::uint64_t>(i));
    BackwardContext backward = f.use(context);
    backward.hooks = &probe.exact_backward();
    f.model->graph.backward(exec, backward);
    probe.sampled_backwards(exec, backward);
  }
  return mean_of(probe.result());
}

Means run_probe(ModelFixture& f, VarianceProbe& probe, std::uint64_t number) {
  return run_probe(f, probe, number, f.context(SamplingMode::kItemsAndRows, 0.5, 0.1));
}

}  // namespace

TEST_CASE("a probe of whole gradients gives the variances of their definitions", "[probe]") {
  ModelFixture f = make_fixture();
  VarianceProbe probe = probe_of(f, 1.0);
  const Means got = run_probe(f, probe, 0);

  double v_act = 0;
  const auto& weights = f.model->graph.sampled_weights();
  const auto& parameters = f.model->graph.parameters();
  const auto distance = [&](const std::vector<double>& a, const std::vector<double>& b,
                            int weight) {
    const auto [begin, end] = f.range(parameters[static_cast<std::size_t>(weight)]);
    double sum = 0;
    for (std::size_t e = begin; e < end; ++e) sum += (a[e] - b[e]) * (a[e] - b[e]);
    return sum;
  };
  std::vector<double> v_s(weights.size());
  for (int i = 0; i < kRepeats; ++i) {
    load_batch(f, i);
    Exec exec = f.forward(static_cast<std::uint64_t>(i));
    PassSettings context = f.context(SamplingMode::kExact, 0.5, 0.1);
    const std::vector<double> exact = f.gradient(exec, context);
    context.mode = SamplingMode::kItems;
    for (int j = 0; j < kRepeats; ++j) {
      context.sampling.repeat = static_cast<std::uint32_t>(1 + j);
      const auto sampled = f.gradient(exec, context);
      for (const int weight : weights)
        v_act += distance(sampled, exact, weight) / (kRepeats * kRepeats);
    }
    // N / (N - 1) sum over the items of || h_i - G / N ||^2. h_i: by batches of one item less.
    context.mode = SamplingMode::kExact;
    std::vector<double> before(exact.size(), 0.0), mean = exact;
    for (double& g : mean) g /= kItems;
    for (std::int64_t n = 1; n <= kItems; ++n) {
      f.model->graph.set_batch(n, {});
      f.model->graph.forward(exec);
      const std::vector<double> until = f.gradient(exec, context);
      std::vector<double> item = until;
      for (std::size_t e = 0; e < item.size(); ++e) item[e] -= before[e];
      before = until;
      for (std::size_t k = 0; k < weights.size(); ++k)
        v_s[k] += distance(item, mean, weights[k]) * kItems / (kItems - 1) / kRepeats;
    }
  }
  double all = 0;
  for (std::size_t k = 0; k < weights.size(); ++k) {
    CHECK(std::abs(got.v_s_linear[k] - v_s[k]) <= 1e-9 * v_s[k]);
    all += v_s[k];
  }
  CHECK(std::abs(got.v_s - all) <= 1e-9 * all);
  CHECK(std::abs(got.v_act - v_act) <= 1e-9 * v_act);
  CHECK(probe.result().size() == kRepeats);
  CHECK(probe.result()[0].item_score.size() == 2);
  CHECK(probe.result()[0].item_score[0].size() == 8);
  CHECK(probe.result()[0].tokens.size() == 8);
}

TEST_CASE("backwards that keep nothing differ by the whole gradient", "[probe]") {
  ModelFixture f = make_fixture();
  VarianceProbe probe = probe_of(f, 1.0);
  run_probe(f, probe, 0);  // leaves other gradients and variances where this probe measures
  PassSettings context = f.context(SamplingMode::kItemsAndRows, 1e-12, 0.1);
  context.sampling.selection = Selection::kBernoulli;
  const Means got = run_probe(f, probe, 0, context);
  double want = 0;
  const Graph& graph = f.model->graph;
  for (int i = 0; i < kRepeats; ++i) {
    load_batch(f, i);
    Exec exec = f.forward(static_cast<std::uint64_t>(i));
    const std::vector<double> exact = f.gradient(exec, f.context(SamplingMode::kExact, 1, 1));
    for (std::size_t k = 0; k < graph.sampled_weights().size(); ++k) {
      if (graph.gate_above(static_cast<int>(k)) < 0) continue;
      const int weight = graph.sampled_weights()[k];
      const auto [begin, end] = f.range(graph.parameters()[static_cast<std::size_t>(weight)]);
      for (std::size_t e = begin; e < end; ++e) want += exact[e] * exact[e] / kRepeats;
      CHECK(got.v_w[k] == 0);
    }
  }
  CHECK(want > 0);
  CHECK(std::abs(got.v_act - want) <= 1e-9 * want);
}

TEST_CASE("a probe leaves out passes whose result is known", "[probe]") {
  // Where nothing is dropped, a sampled pass is the exact one.
  // Where only rows are dropped, all sampled passes are the same.
  ModelFixture f = make_fixture();
  Exec exec = f.forward();
  Tensor measured{nullptr, DType::kF64, {std::ssize(f.model->graph.sampled_weights())}};
  const Buffer variances(*f.ops, {&measured});
  const auto variance_of = [&](double weight_ratio, std::uint32_t repeat) {
    PassSettings context = f.context(SamplingMode::kItems, 1, weight_ratio);
    context.sampling.weight_variance = measured;
    context.sampling.repeat = repeat;
    CHECK(f.gradient(exec, context) == f.gradient(exec, f.context(SamplingMode::kExact, 1, 1)));
    const auto* values = measured.ptr<double>();
    return std::vector<double>(values, values + measured.elements());
  };
  CHECK(variance_of(1, 1) == std::vector<double>(f.model->graph.sampled_weights().size()));
  const std::vector<double> want = variance_of(0.1, 1);
  CHECK(variance_of(0.1, 2) == want);

  for (const auto& [weight_ratio, passes] : {std::pair{1.0, 0}, {0.1, 1}}) {
    int looks = 0;
    ModelFixture watched =
        make_fixture(watched_ops([&](const ItemSketch&, const std::string&) { ++looks; }));
    VarianceProbe probe = probe_of(watched, 1.0);
    run_probe(watched, probe, 0);  // leaves other gradients and variances where this probe measures
    looks = 0;
    const Means got =
        run_probe(watched, probe, 1, watched.context(SamplingMode::kItemsAndRows, 1, weight_ratio));
    CHECK(looks == (1 + passes) * kRepeats * static_cast<int>(want.size()));
    CHECK(got.v_s > 0);
    CHECK(got.v_act == 0);
    for (const double v_w : got.v_w) CHECK((v_w > 0) == (passes > 0));
  }
}

TEST_CASE("a probe times the weight gradients and what is below each gate", "[probe]") {
  ModelFixture f = make_fixture();
  VarianceProbe probe(f.model->graph, *f.ops, *f.sampled,
                      VarianceProbe::Options{.fraction = 0.1, .curves = true, .seconds = true});
  load_batch(f, 0);
  probe.begin(1, 0, 1, 0);
  Exec exec = f.forward();
  BackwardContext context = f.use(f.context(SamplingMode::kExact, 1, 1));
  context.hooks = &probe.exact_backward();
  const auto start = std::chrono::steady_clock::now();
  f.model->graph.backward(exec, context);
  const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - start;
  probe.sampled_backwards(exec, context);
  const MeasuredBatch& measured = probe.result()[0];
  CHECK(measured.weight_seconds.size() == f.model->graph.sampled_weights().size());
  CHECK(std::ssize(measured.item_seconds) == f.model->graph.gates());
  double sum = 0;
  for (const std::vector<double>* seconds : {&measured.weight_seconds, &measured.item_seconds})
    for (const double s : *seconds) {
      CHECK(s > 0);
      sum += s;
    }
  CHECK(sum < whole.count());
}

TEST_CASE("V_s is the variance of the gradient from batch to batch", "[probe][law]") {
  constexpr int kBatches = 300;
  ModelFixture f = make_fixture();
  const int missing = GENERATE(0, 1);
  f.model->graph.set_batch(kItems - missing, {});
  VarianceProbe probe = probe_of(f, 1.0);
  std::vector<double> gradient_sum, gradient_square;
  double v_s = 0, v_s_square = 0;
  for (int i = 0; i < kBatches; ++i) {
    probe.begin(1, 0, kRepeats, kRepeats);
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      load_batch(f, kRepeats * i + repeat);
      Exec exec = f.forward(0);
      BackwardContext context = f.use(f.context(SamplingMode::kExact, 1, 1));
      context.hooks = &probe.exact_backward();
      f.ops->run(Fill{.y = f.model->graph.parameters().gradients(), .value = 0});
      f.model->graph.backward(exec, context);
      probe.sampled_backwards(exec, context);
    }
    const double got = mean_of(probe.result()).v_s;
    v_s += got / kBatches;
    v_s_square += got * got / kBatches;
    std::size_t e = 0;  // of the last batch
    for (const int weight : f.model->graph.sampled_weights()) {
      const Tensor& g = f.model->graph.parameters()[static_cast<std::size_t>(weight)].gradient;
      gradient_sum.resize(
          std::max(gradient_sum.size(), e + static_cast<std::size_t>(g.elements())));
      gradient_square.resize(gradient_sum.size());
      for (std::int64_t j = 0; j < g.elements(); ++j, ++e) {
        gradient_sum[e] += g.ptr<double>()[j];
        gradient_square[e] += g.ptr<double>()[j] * g.ptr<double>()[j];
      }
    }
  }
  double want = 0;
  for (std::size_t e = 0; e < gradient_sum.size(); ++e)
    want += (gradient_square[e] - gradient_sum[e] * gradient_sum[e] / kBatches) / (kBatches - 1);
  // One batch tells the variance half as well as the two of a probe do.
  const double error = std::sqrt(3 * (v_s_square - v_s * v_s) / kBatches);
  INFO("V_s " << v_s << ", variance " << want << ", standard error " << error);
  CHECK(error < 0.1 * want);
  CHECK(std::abs(v_s - want) <= 5 * error);
}

TEST_CASE("V_w is Eq. 3 of the rows that SampleA left", "[probe][law]") {
  constexpr double kRatio = 0.1;
  // Sum over the rows of (1 - q) / q ||dy||^2 ||x||^2, q = min(1, c ||dy|| ||x||) with c found by
  // halving.
  const auto equation_3 = [](const ItemSketch& args) {
    std::vector<double> score;
    for (std::int64_t r = 0; r < args.dy.rows(); ++r) {
      const std::int64_t full = args.row ? args.row.ptr<std::int32_t>()[r] : r;
      double dy = 0, x = 0;
      for (std::int64_t c = 0; c < args.dy.width(); ++c)
        dy += std::pow(args.dy.ptr<double>()[r * args.dy.width() + c], 2);
      for (std::int64_t c = 0; c < args.x_full.width(); ++c)
        x += std::pow(args.x_full.ptr<double>()[full * args.x_full.width() + c], 2);
      score.push_back(std::sqrt(dy * x));
    }
    const double budget = kRatio * static_cast<double>(score.size());
    double low = 0, high = 1e12;
    for (int halving = 0; halving < 200; ++halving) {
      const double c = (low + high) / 2;
      double sum = 0;
      for (const double x : score) sum += std::min(1.0, c * x);
      (sum < budget ? low : high) = c;
    }
    double variance = 0;
    for (const double x : score)
      if (const double q = std::min(1.0, low * x); q > 0) variance += (1 - q) / q * x * x;
    return variance;
  };

  std::vector<double> passes;  // of all linears in all passes, in the order in which they run
  ModelFixture f = make_fixture(watched_ops(
      [&](const ItemSketch& args, const std::string&) { passes.push_back(equation_3(args)); }));
  VarianceProbe probe = probe_of(f, 0.01);
  const Means got = run_probe(f, probe, 0);
  const std::size_t linears = f.model->graph.sampled_weights().size();
  constexpr std::size_t kPasses = 1 + kRepeats;  // of a batch: exact, sampled
  REQUIRE(got.v_w.size() == linears);
  REQUIRE(passes.size() == kPasses * kRepeats * linears);
  for (std::size_t k = 0; k < linears; ++k) {
    double want = 0;
    for (std::size_t batch = 0; batch < kRepeats; ++batch)
      for (std::size_t repeat = 1; repeat <= kRepeats; ++repeat)  // backward: the last linear first
        want += passes[(batch * kPasses + repeat + 1) * linears - 1 - k] / (kRepeats * kRepeats);
    INFO("linear " << k);
    CHECK(want > 0);
    CHECK(std::abs(got.v_w[k] - want) <= 1e-9 * want);
  }
}

TEST_CASE("a probe draws rows as SampleW does, and measures their error", "[probe]") {
  const std::string device = GENERATE("cpu", "emu");
  for (const Selection selection : {Selection::kSystematic, Selection::kBernoulli}) {
    ModelFixture f(read_model_options(
                       {"type=vit", "width=16", "depth=2", "heads=2", "patch=4", "pooling=mean"}),
                   {1, 8, 8}, kClasses, kItems, DType::kF64, make_ops(device));
    VarianceProbe probe(
        f.model->graph, *f.ops, *f.sampled,
        VarianceProbe::Options{.fraction = 1, .most_passes = kRepeats, .curves = true});
    PassSettings context = f.context(SamplingMode::kItemsAndRows, 1, 0.3);
    context.sampling.selection = selection;
    context.sampling.ratios.weight[1] = 1;
    f.use(context);  // a probe begins at the ratios in force
    run_probe(f, probe, 0, context);
    const std::vector<MeasuredBatch>& batches = probe.result();
    for (int i = 0; i < kRepeats; ++i) {
      load_batch(f, i);
      Exec exec = f.forward(static_cast<std::uint64_t>(i));
      context.mode = SamplingMode::kExact;
      const std::vector<double> exact = f.gradient(exec, context);
      context.mode = SamplingMode::kItemsAndRows;
      context.sampling.repeat = 1;
      const std::vector<double> drawn = f.gradient(exec, context);
      context.sampling.repeat = 0;
      const MeasuredBatch& got = batches[static_cast<std::size_t>(i)];
      const auto& weights = f.model->graph.sampled_weights();
      for (std::size_t k = 0; k < weights.size(); ++k) {
        INFO(device << ", batch " << i << ", linear " << k);
        const auto weight = static_cast<std::size_t>(weights[k]);
        const auto [begin, end] = f.range(f.model->graph.parameters()[weight]);
        double error = 0;
        for (std::size_t e = begin; e < end; ++e) error += std::pow(drawn[e] - exact[e], 2);
        if (k == 1 || selection == Selection::kBernoulli) {  // nothing is drawn, or Eq. 3 is exact
          CHECK(got.drawn_error[k] == 0);
          CHECK(got.drawn_variance[k] == 0);
          continue;
        }
        CHECK(error > 0);
        CHECK_THAT(got.drawn_error[k], WithinRel(error, 1e-9));
        CHECK_THAT(got.drawn_variance[k], WithinRel(got.v_w[k], 1e-9));
      }
    }
  }
}

TEST_CASE("sketches stand for gradients without bias", "[probe][law]") {
  ModelFixture f = make_fixture();
  VarianceProbe all = probe_of(f, 1.0), share = probe_of(f, 0.3);
  const Means want = run_probe(f, all, 0);
  constexpr int kProbes = 400;
  double sum = 0, squares = 0, act = 0;
  for (int p = 0; p < kProbes; ++p) {
    const Means got = run_probe(f, share, static_cast<std::uint64_t>(p));
    sum += got.v_s;
    squares += got.v_s * got.v_s;
    act += got.v_act / kProbes;
  }
  const double mean = sum / kProbes, error = std::sqrt((squares / kProbes - mean * mean) / kProbes);
  CHECK(error > 0);
  CHECK(std::abs(mean - want.v_s) <= 5 * error);
  CHECK(std::abs(act - want.v_act) <= 0.1 * want.v_act);
}
