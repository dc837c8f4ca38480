#include "optim/trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/decorators/forwarding_ops.h"
#include "tests/optim/trainer_fixture.h"
#include "tests/support/catch.h"

using namespace vcas;

TEST_CASE("training lowers the loss, exactly and with VCAS", "[trainer]") {
  TrainerOptions options = TrainerFixture::defaults();
  options.vcas.enabled = GENERATE(true, false);
  options.vcas.tau_act = options.vcas.tau_w = 0.1;
  options.total_steps = 200;
  TrainerFixture f(options);
  const auto reports = f.run(200);
  const auto mean_loss = [&](std::size_t first) {
    double sum = 0;
    for (std::size_t i = first; i < first + 20; ++i) sum += reports[i].loss / 20;
    return sum;
  };
  CHECK(mean_loss(180) < 0.8 * mean_loss(0));
  CHECK(f.trainer->controller().probes() == (options.vcas.enabled ? 67 : 0));
}

TEST_CASE("probes leave no trace when the ratios stay at one", "[trainer][law]") {
  TrainerOptions options = TrainerFixture::defaults();
  options.vcas.enabled = false;
  TrainerFixture exact(options, 0.1);
  options.vcas.enabled = true;
  options.vcas.tau_act = options.vcas.tau_w = 0;  // no variance may be added
  options.vcas.probe = GENERATE("in_place", "separate");
  TrainerFixture probed(options, 0.1);
  exact.run(12);
  probed.run(12);
  CHECK(probed.trainer->controller().probes() == 4);
  CHECK(probed.weights() == exact.weights());
}

TEST_CASE("four micro-batches of eight train like one batch of 32", "[trainer]") {
  TrainerOptions options = TrainerFixture::defaults();
  options.batch = 32;
  options.vcas.enabled = false;
  options.optimizer.name = "sgd";
  TrainerFixture whole(options);
  options.micro_batch = 8;
  TrainerFixture parts(options);
  const auto a = whole.run(5), b = parts.run(5);
  const auto x = whole.weights(), y = parts.weights();
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::abs(double(x[i]) - y[i]));
  CHECK(worst <= 1e-5);
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(std::abs(a[i].loss - b[i].loss) <= 1e-5);
    CHECK(a[i].accuracy == b[i].accuracy);
  }
}

TEST_CASE("a restored trainer goes on with the same bits", "[trainer]") {
  TrainerOptions options = TrainerFixture::defaults();
  options.vcas.tau_act = options.vcas.tau_w = 0.2;
  options.vcas.probe = GENERATE("in_place", "separate");
  TrainerFixture whole(options, 0.1), first(options, 0.1), second(options, 0.1);
  whole.run(20);
  first.run(11);
  REQUIRE(first.trainer->at_rest());
  const auto copy = [](const Tensor& to, const Tensor& from) {
    std::copy_n(from.ptr<float>(), from.elements(), to.ptr<float>());
  };
  copy(second.model->graph.parameters().values(), first.model->graph.parameters().values());
  for (std::size_t i = 0; i < first.trainer->optimizer().state().size(); ++i)
    copy(second.trainer->optimizer().state()[i].tensor,
         first.trainer->optimizer().state()[i].tensor);
  second.trainer->restore(nlohmann::json::parse(first.trainer->state().dump()));
  second.run(20);
  CHECK(second.weights() == whole.weights());
  CHECK(second.trainer->controller().to_json() == whole.trainer->controller().to_json());
}

TEST_CASE("a loss that is not finite stops before the weights change", "[trainer][error]") {
  TrainerFixture f(TrainerFixture::defaults());
  f.run(2);
  const auto before = f.weights();
  RandomBatches source(16, TrainerFixture::kPixels, TrainerFixture::kClasses);
  Batch bad = source.next();
  bad.values[5] = std::numeric_limits<float>::quiet_NaN();
  try {
    f.trainer->step(bad);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kDiverged);
    CHECK_THAT(error.what(), ContainsSubstring("step 3") && ContainsSubstring("loss is nan") &&
                                 ContainsSubstring("weights unchanged"));
  }
  CHECK(f.weights() == before);
}

namespace {

// Spoils every bias gradient.
class InfiniteColumnSum final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  std::string name() const override { return inner_->name(); }
#define VCAS_OP(Args) \
  void run(const Args& args) override { forward(args); }
  VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

 private:
  template <class Args>
  void forward(const Args& args) {
    inner_->run(args);
    if constexpr (std::is_same_v<Args, ColumnSum>)
      args.sum.template ptr<float>()[2] = std::numeric_limits<float>::infinity();
  }
};

}  // namespace

TEST_CASE("a gradient that is not finite names its tensor", "[trainer][error]") {
  TrainerFixture f(TrainerFixture::defaults(), 0,
                   std::make_unique<InfiniteColumnSum>(make_ops("cpu")));
  const auto before = f.weights();
  try {
    f.run(1);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kDiverged);
    CHECK_THAT(error.what(), ContainsSubstring("step 1: gradient of vit.") &&
                                 ContainsSubstring(".bias is inf at element 2") &&
                                 ContainsSubstring("weights unchanged"));
  }
  CHECK(f.weights() == before);
}

TEST_CASE("evaluation changes nothing", "[trainer]") {
  TrainerOptions options = TrainerFixture::defaults();
  TrainerFixture plain(options, 0.1), looked(options, 0.1);
  plain.run(8);
  looked.run(4);
  RandomBatches source(16, TrainerFixture::kPixels, TrainerFixture::kClasses, 5000);
  const Evaluation first = looked.trainer->evaluate(source, 3);
  CHECK(first.items == 48);
  looked.run(8);
  CHECK(looked.weights() == plain.weights());
}

TEST_CASE("added variance settles near its budget", "[trainer][law]") {
  TrainerOptions options = TrainerFixture::defaults();
  options.total_steps = 900;
  options.batch = 32;
  options.schedule.kind = "constant";
  options.schedule.learning_rate = 1e-3;
  options.vcas.tau_act = options.vcas.tau_w = 0.25;
  options.vcas.s_step = 0.02;
  TrainerFixture f(options);
  RandomBatches source(options.batch, TrainerFixture::kPixels, TrainerFixture::kClasses);
  double act = 0, variance = 0;
  while (!f.trainer->done()) {
    const StepReport report = f.trainer->step(source.next());
    if (report.probed && report.step > 450) {
      act += f.trainer->last_probe().v_act;
      variance += f.trainer->last_probe().v_s;
    }
  }
  INFO("V_act / V_s " << act / variance << ", s " << f.trainer->controller().s());
  CHECK(act / variance > 0.25 / 3);
  CHECK(act / variance < 0.25 * 3);
}
