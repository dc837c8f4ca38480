#include "optim/variance_probe.h"

#include <algorithm>
#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/model_fixture.h"
#include "tests/support/watched_ops.h"

using namespace vcas;

namespace {

constexpr int kRepeats = 2;

ModelFixture make_fixture(std::unique_ptr<Ops> ops = make_ops("cpu")) {
  ModelOptions options;
  options.width = 16;
  options.depth = 2;
  options.heads = 2;
  options.patch = 4;
  return ModelFixture(options, {1, 8, 8}, 3, 8, DType::kF64, std::move(ops));
}

// Other numbers in the inputs for batch i.
void load_batch(ModelFixture& f, int i) {
  const Tensor input = f.model->graph.tensor(f.model->values);
  const PhiloxAddress address =
      philox_address({9, Stream::kData, static_cast<std::uint64_t>(i), 0, 0});
  for (std::int64_t e = 0; e < input.elements(); ++e)
    input.ptr<float>()[e] =
        static_cast<float>(philox_normal(address, static_cast<std::uint64_t>(e)));
}

ProbeResult run_probe(ModelFixture& f, VarianceProbe& probe, std::uint64_t number) {
  probe.begin(1, number);
  for (int i = 0; i < kRepeats; ++i) {
    load_batch(f, i);
    Exec exec = f.exec(static_cast<std::uint64_t>(i));
    f.model->graph.forward(exec);
    const BackwardContext context = f.context(SamplingMode::kItemsAndRows, 0.5, 0.1);
    probe.exact_backward(exec, context);
    probe.sampled_backwards(exec, context);
  }
  return probe.result();
}

}  // namespace

TEST_CASE("a probe of all entries gives the variances of their definitions", "[probe]") {
  ModelFixture f = make_fixture();
  VarianceProbe probe(f.model->graph, *f.ops, 1.0, kRepeats);
  const ProbeResult got = run_probe(f, probe, 0);

  std::vector<std::vector<double>> exact;
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
  for (int i = 0; i < kRepeats; ++i) {
    load_batch(f, i);
    Exec exec = f.exec(static_cast<std::uint64_t>(i));
    f.model->graph.forward(exec);
    BackwardContext context = f.context(SamplingMode::kExact, 0.5, 0.1);
    exact.push_back(f.gradient(exec, context));
    context.mode = SamplingMode::kItems;
    for (int j = 0; j < kRepeats; ++j) {
      context.repeat = static_cast<std::uint32_t>(1 + j);
      const auto sampled = f.gradient(exec, context);
      for (const int weight : weights)
        v_act += distance(sampled, exact.back(), weight) / (kRepeats * kRepeats);
    }
  }
  double v_s = 0;
  for (std::size_t k = 0; k < weights.size(); ++k) {
    const double of_weight = distance(exact[0], exact[1], weights[k]) / 2;  // M = 2
    CHECK(std::abs(got.v_s_weight[k] - of_weight) <= 1e-9 * of_weight);
    v_s += of_weight;
  }
  CHECK(std::abs(got.v_s - v_s) <= 1e-9 * v_s);
  CHECK(std::abs(got.v_act - v_act) <= 1e-9 * v_act);
  CHECK(got.item_norm.size() == kRepeats);
  CHECK(got.item_norm[0].size() == 2);
  CHECK(got.item_norm[0][0].size() == 8);
}

TEST_CASE("V_w is Eq. 3 of the rows that SampleA left", "[probe][law]") {
  constexpr double kRatio = 0.1;
  // Sum over the rows of (1 - q) / q ||dy||^2 ||x||^2, q = min(1, c ||dy|| ||x||) with c found by
  // halving.
  const auto equation_3 = [](const LinearWeightBlock& args) {
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
  ModelFixture f = make_fixture(watched_ops([&](const LinearWeightBlock& args, const std::string&) {
    passes.push_back(equation_3(args));
  }));
  VarianceProbe probe(f.model->graph, *f.ops, 0.01, kRepeats);
  const ProbeResult got = run_probe(f, probe, 0);
  const std::size_t linears = f.model->graph.sampled_weights().size();
  REQUIRE(got.v_w.size() == linears);
  REQUIRE(passes.size() == kRepeats * (1 + kRepeats) * linears);  // each batch: exact, then sampled
  for (std::size_t k = 0; k < linears; ++k) {
    double want = 0;
    for (std::size_t batch = 0; batch < kRepeats; ++batch)
      for (std::size_t repeat = 1; repeat <= kRepeats; ++repeat)  // backward: the last linear first
        want +=
            passes[(batch * (1 + kRepeats) + repeat + 1) * linears - 1 - k] / (kRepeats * kRepeats);
    INFO("linear " << k);
    CHECK(want > 0);
    CHECK(std::abs(got.v_w[k] - want) <= 1e-9 * want);
  }
}

TEST_CASE("a share of the entries stands for all without bias", "[probe][law]") {
  ModelFixture f = make_fixture();
  VarianceProbe all(f.model->graph, *f.ops, 1.0, kRepeats),
      share(f.model->graph, *f.ops, 0.3, kRepeats);
  const ProbeResult want = run_probe(f, all, 0);
  constexpr int kProbes = 400;
  double sum = 0, squares = 0, act = 0;
  for (int p = 0; p < kProbes; ++p) {
    const ProbeResult got = run_probe(f, share, static_cast<std::uint64_t>(p));
    sum += got.v_s;
    squares += got.v_s * got.v_s;
    act += got.v_act / kProbes;
  }
  const double mean = sum / kProbes, error = std::sqrt((squares / kProbes - mean * mean) / kProbes);
  CHECK(error > 0);
  CHECK(std::abs(mean - want.v_s) <= 5 * error);
  CHECK(std::abs(act - want.v_act) <= 0.1 * want.v_act);
}
