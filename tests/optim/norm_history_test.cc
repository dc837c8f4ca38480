// Steps that are skipped for the length of their gradient.
#include "optim/norm_history.h"

#include <cmath>
#include <limits>

#include "tests/optim/trainer_fixture.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

// Norms of mean 10 and standard deviation 2.
double usual(std::uint64_t i) {
  return 10 + 2 * philox_normal(philox_address({.seed = 5, .stream = Stream::kData}), i);
}

NormHistory after(std::uint64_t norms, double deviations) {
  NormHistory history(deviations);
  for (std::uint64_t i = 0; i < norms; ++i) history.take(usual(i));
  return history;
}

// The usual batches, but the losses of one step weigh a hundred times as much.
class OneLongStep final : public BatchSource {
 public:
  OneLongStep(const TrainerOptions& options, std::int64_t first, std::int64_t long_step)
      : inner_(options.batch, first), step_(first), long_step_(long_step) {}
  const Batch& next() override {
    batch_ = inner_.next();
    if (++step_ == long_step_) batch_.weights.assign(batch_.labels.size(), 100);
    return batch_;
  }

 private:
  RandomBatches inner_;
  Batch batch_;
  std::int64_t step_, long_step_;
};

}  // namespace

TEST_CASE("mean and spread of norms are those of the norms", "[outliers]") {
  const NormHistory history = after(4000, 6);
  CHECK_THAT(history.mean(), WithinAbs(10, 5 * 2 * std::sqrt(0.01 / 1.99)));
  const double variance = history.state().at(2);
  CHECK_THAT(std::sqrt(variance), WithinAbs(2, 0.5));
}

TEST_CASE("the first norms weigh alike", "[outliers]") {
  NormHistory history(6);
  history.take(4);
  CHECK(history.mean() == 4);
  history.take(8);
  CHECK(history.mean() == 6);
}

TEST_CASE("an outlier is beyond the asked deviations, and only after enough norms", "[outliers]") {
  NormHistory young = after(NormHistory::kFewest - 1, 6);
  CHECK_FALSE(young.take(1e9));
  CHECK(after(NormHistory::kFewest, 6).take(1e9));
  NormHistory history = after(400, 6);
  const double spread = std::sqrt(history.state().at(2).get<double>());
  for (const double deviations : {5.9, 6.1}) {
    NormHistory copy = history;
    CHECK(copy.take(copy.mean() + deviations * spread) == (deviations > 6));
  }
  CHECK_FALSE(history.take(0));  // short ones do no harm
  NormHistory zeros(6);
  for (int i = 0; i < 200; ++i) zeros.take(0);
  CHECK_FALSE(zeros.take(1));  // nothing to be longer than
}

TEST_CASE("norms that stay long become usual, however constant they were", "[outliers]") {
  const double norm = GENERATE(0.03, 1.0);
  NormHistory history(6);
  for (int i = 0; i < 200; ++i) CHECK_FALSE(history.take(norm));
  NormHistory copy = history;
  CHECK(copy.take(norm * (1 + 6.1 * NormHistory::kLeastSpread)));
  CHECK_FALSE(history.take(norm * (1 + 5.9 * NormHistory::kLeastSpread)));
  int skipped = 0;
  while (history.take(1000 * norm) && skipped < 1000) ++skipped;
  CHECK(skipped > 5);
  CHECK(skipped < 200);
}

TEST_CASE("a history goes on from its state", "[outliers]") {
  NormHistory whole = after(300, 3), part = after(200, 3), rest(3);
  rest.restore(nlohmann::json::parse(part.state().dump()));
  for (std::uint64_t i = 200; i < 300; ++i) rest.take(usual(i));
  CHECK(rest.state() == whole.state());
}

TEST_CASE("a step with an outlying gradient changes nothing, and the run goes on", "[outliers]") {
  constexpr std::int64_t kLong = 60;
  TrainerOptions options = TrainerFixture::defaults();
  options.total_steps = 80;
  options.optimizer.skip_deviations = 8;
  options.optimizer.max_gradient_norm = GENERATE(0.0, 0.2);
  options.optimizer.clip = "predicted";
  TrainerFixture whole(options);
  OneLongStep source(options, 0, kLong);
  NormHistory norms(8);
  std::vector<float> before, moments;
  const auto moment = [&] {
    const Tensor& m = whole.trainer->optimizer().state().front().tensor;
    return std::vector<float>(m.ptr<float>(), m.ptr<float>() + m.elements());
  };
  while (!whole.trainer->done()) {
    if (whole.trainer->steps() + 1 == kLong) {
      before = whole.weights();
      moments = moment();
    }
    const StepReport report = whole.trainer->step(source.next());
    INFO("step " << report.step << ", norm " << report.gradient_norm);
    CHECK(report.skipped == (report.step == kLong));
    CHECK(norms.take(report.gradient_norm) == report.skipped);
    CHECK((report.clip_factor == 0) == report.skipped);
    if (report.step != kLong) continue;
    CHECK(whole.weights() == before);
    CHECK(moment() == moments);
  }
  CHECK(whole.weights() != before);
  CHECK(whole.trainer->state().at("norms") == norms.state());
  CHECK(whole.trainer->optimizer().steps() == options.total_steps - 1);

  options.optimizer.skip_deviations = 0;
  TrainerFixture all(options);
  OneLongStep again(options, 0, kLong);
  while (!all.trainer->done()) CHECK_FALSE(all.trainer->step(again.next()).skipped);
  CHECK_FALSE(all.trainer->state().contains("norms"));
  CHECK(all.weights() != whole.weights());
}
