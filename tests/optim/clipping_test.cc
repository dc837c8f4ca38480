// Clipping of sampled gradients: by their own norm, and by the norms of steps before them.
#include <cmath>

#include "tests/optim/trainer_fixture.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

constexpr double kMaxNorm = 0.2;

TrainerOptions clipped(const std::string& clip) {
  TrainerOptions options = TrainerFixture::defaults();
  options.optimizer.max_gradient_norm = kMaxNorm;
  options.optimizer.clip = clip;
  return options;
}

std::vector<double> gradient(const TrainerFixture& f) {
  const Tensor slab = f.model->graph.parameters().gradients();
  return {slab.ptr<float>(), slab.ptr<float>() + slab.elements()};
}

double inner(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Batch batch_of(const TrainerOptions& options) { return RandomBatches(options.batch).next(); }

double predicted(const TrainerFixture& f) {
  return *f.trainer->optimizer().predicted().ptr<double>();
}

}  // namespace

// The weights stay as they are, so each step is a draw g of the same gradient G.
// The bias is the mean of factor (g - G) along G, as a share of the clipped G.
TEST_CASE("clipping by earlier norms keeps the mean of sampled gradients", "[trainer][law]") {
  TrainerOptions options = clipped(GENERATE("norm", "predicted"));
  options.schedule.learning_rate = 1e-30;
  options.total_steps = 2000;
  vcas_of(options).act_ratio = {0.3, 0.6};
  vcas_of(options).weight_ratio = {0.5};
  vcas_of(options).selection = GENERATE("systematic", "bernoulli");
  const Batch batch = batch_of(options);
  TrainerFixture sampled(options);
  TrainerOptions whole = options;
  whole.method.type = "exact";
  TrainerFixture exact(whole);
  const StepReport whole_step = exact.trainer->step(batch);
  REQUIRE(whole_step.gradient_norm > 3 * kMaxNorm);
  const std::vector<double> want = gradient(exact);

  double sum = 0, squares = 0;
  const auto draws = static_cast<double>(options.total_steps);
  while (!sampled.trainer->done()) {
    const StepReport report = sampled.trainer->step(batch);
    REQUIRE(report.clip_factor < 1);
    const double along = inner(gradient(sampled), want) / inner(want, want);
    const double difference = report.clip_factor / whole_step.clip_factor * (along - 1);
    sum += difference;
    squares += difference * difference;
  }
  const double mean = sum / draws;
  const double standard_error = std::sqrt((squares / draws - mean * mean) / draws);
  CAPTURE(options.optimizer.clip, sampled.vcas().summary(), mean, standard_error);
  if (options.optimizer.clip == "predicted")
    CHECK(std::abs(mean) <= 5 * standard_error);
  else
    CHECK(mean < -5 * standard_error);
}

TEST_CASE("a step is clipped by the norms of the steps before it", "[trainer]") {
  const std::string method = GENERATE("exact", "vcas");
  TrainerOptions options = clipped("predicted");
  options.method.type = method;
  TrainerFixture f(options);
  double mean = 0;
  for (const StepReport& report : f.run(12)) {
    const double squared = report.gradient_norm * report.gradient_norm;
    if (report.step == 1) mean = squared;
    INFO("step " << report.step);
    CHECK_THAT(report.clip_factor, WithinRel(std::min(1.0, kMaxNorm / std::sqrt(mean)), 1e-12));
    mean = 0.9 * mean + 0.1 * squared;
  }
  CHECK_THAT(predicted(f), WithinRel(mean, 1e-12));
  CHECK(f.trainer->state().at("predicted_squared_norm") == predicted(f));
}

TEST_CASE("without a prediction in the state, the next step is clipped by its own norm",
          "[trainer]") {
  TrainerFixture by_norm(clipped("norm")), f(clipped("predicted"));
  by_norm.run(5);
  const nlohmann::json state = by_norm.trainer->state();
  CHECK_FALSE(state.contains("predicted_squared_norm"));
  f.run(5);
  f.trainer->restore(state);
  CHECK(predicted(f) == 0);
  const StepReport report = f.run(6).front();
  CHECK_THAT(report.clip_factor * report.gradient_norm, WithinRel(kMaxNorm, 1e-12));
}

TEST_CASE("nothing is learnt from a gradient that is not finite", "[trainer][error]") {
  TrainerFixture f(clipped("predicted"));
  f.run(3);
  const double before = predicted(f);
  Batch bad = batch_of(f.options);
  bad.values[5] = NAN;
  CHECK_THROWS_AS(f.trainer->step(bad), Error);
  CHECK(before > 0);
  CHECK(predicted(f) == before);
}

TEST_CASE("0 clips nothing, whatever norm is taken", "[trainer]") {
  TrainerOptions options = clipped("predicted");
  options.optimizer.max_gradient_norm = 0;
  TrainerFixture predicted(options);
  options.optimizer.clip = "norm";
  TrainerFixture norm(options);
  for (const StepReport& report : predicted.run(5)) CHECK(report.clip_factor == 1);
  norm.run(5);
  CHECK(predicted.weights() == norm.weights());
}
