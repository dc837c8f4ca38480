// Training passes that a device repeats as one piece of work.
#include <algorithm>
#include <chrono>
#include <iterator>

#include "kernels/emu/emu_ops.h"
#include "tests/optim/text_fixture.h"
#include "tests/optim/trainer_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/fewer_cases.h"

using namespace vcas;

namespace {

// The emulated device; `repeats` = false: without graphs. Notes which repetitions called the body.
class EmuOps final : public ForwardingOps {
 public:
  explicit EmuOps(bool repeats) : ForwardingOps(make_emu_ops()), repeats_(repeats) {}

  void repeat(std::unique_ptr<Recording>& recording, const std::function<void()>& body) override {
    called.push_back(false);
    const auto noted = [&] {
      called.back() = true;
      body();
    };
    repeats_ ? inner_->repeat(recording, std::ref(noted)) : noted();
  }

  std::int64_t launches() const { return emu_launches(*inner_); }
  std::ptrdiff_t repetitions() const { return std::ssize(called); }
  std::ptrdiff_t calls() const { return std::ranges::count(called, true); }
  std::vector<bool> called;  // of each repetition

 private:
  bool repeats_;
};

struct EmuTrainer {
  EmuTrainer(const TrainerOptions& options, bool repeats)
      : device(new EmuOps(repeats)), f(options, 0.1, std::unique_ptr<Ops>(device)) {}

  EmuOps* device;
  TrainerFixture f;
};

TrainerOptions sampled() {
  TrainerOptions options = TrainerFixture::defaults();
  vcas_of(options).act_ratio = {0.3, 0.6};
  vcas_of(options).weight_ratio = {0.5};
  options.optimizer.max_gradient_norm = 0.5;
  options.optimizer.clip = "predicted";
  return options;
}

// Batches of other data, masks and draws, rates and clipping: nothing of them is an argument.
// Gives the reports of `b`.
std::vector<StepReport> check_same(EmuTrainer& a, EmuTrainer& b, std::int64_t steps) {
  const auto want = a.f.run(steps), got = b.f.run(steps);
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    INFO("step " << i + 1);
    CHECK(got[i].loss == want[i].loss);
    CHECK(got[i].gradient_norm == want[i].gradient_norm);
    CHECK(got[i].clip_factor == want[i].clip_factor);
    CHECK(got[i].probed == want[i].probed);
  }
  CHECK(b.f.weights() == a.f.weights());
  CHECK(b.f.ops->waits() == a.f.ops->waits());
  const auto counted = b.f.ops->rows(), meant = a.f.ops->rows();
  REQUIRE(counted.size() == meant.size());
  for (std::size_t i = 0; i < meant.size(); ++i) {
    INFO(meant[i].place << "/" << meant[i].op);
    CHECK(counted[i].place == meant[i].place);
    CHECK(counted[i].op == meant[i].op);
    CHECK(counted[i].phase == meant[i].phase);
    CHECK(counted[i].calls == meant[i].calls);
    CHECK(counted[i].flops == meant[i].flops);
    CHECK(counted[i].launches == meant[i].launches);
  }
  return got;
}

}  // namespace

TEST_CASE("repeated passes train with the same bits, and are counted", "[trainer][repeat]") {
  TrainerOptions options = sampled();
  options.batch = 12;
  // 8: micro-batches of 8 and of 4
  std::tie(options.micro_batch, options.method.type) =
      GENERATE(table<int, std::string>({{0, "vcas"}, {0, "exact"}, {8, "vcas"}, {4, "vcas"}}));
  EmuTrainer called(options, false), repeated(options, true);
  check_same(called, repeated, 4);
  const int micro_batches = options.micro_batch == 0 ? 1 : options.micro_batch == 8 ? 2 : 3;
  CHECK(repeated.device->repetitions() == 4 * micro_batches);
  // The first of three alike is one of its own: it replaces gradients.
  CHECK(repeated.device->calls() == (options.micro_batch ? 4 : 2));
}

TEST_CASE("a repeated pass is one launch of a step's few", "[trainer][repeat]") {
  TrainerOptions options = sampled();
  options.micro_batch = GENERATE(0, 8);
  EmuTrainer t(options, true);
  t.f.run(2);
  t.f.ops->reset();
  const std::int64_t before = t.device->launches();
  t.f.run(3);
  // The pass, losses and hits; the norm; clipping; Adam.
  const int micro = options.micro_batch ? 2 : 1;
  CHECK(t.device->launches() - before == 3 * micro + 3);
  CHECK(t.f.ops->waits() == 1);
}

TEST_CASE("a repeated pass has its forward's share of the seconds", "[trainer][repeat]") {
  EmuTrainer t(sampled(), true);
  const auto begin = std::chrono::steady_clock::now();
  const auto reports = t.f.run(5);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  double all = 0;
  for (const StepReport& report : reports) all += report.seconds.forward + report.seconds.backward;
  CHECK(all <= taken.count());
  const auto share = [&](std::size_t step) {
    const StepSeconds& seconds = reports[step].seconds;
    return seconds.forward / (seconds.forward + seconds.backward);
  };
  CHECK(share(0) > 0);
  for (const std::size_t step : {2, 3, 4}) CHECK(share(step) > 0.5 * share(0));
}

TEST_CASE("passes are captured anew when the ratios change", "[trainer][repeat]") {
  TrainerOptions options = TrainerFixture::defaults();
  vcas_of(options).probe = GENERATE("in_place", "separate");
  vcas_of(options).update_every = 5;
  vcas_of(options).tau_act = vcas_of(options).tau_w = 1;
  vcas_of(options).s_step = 0.3;
  vcas_of(options).weight_multiplier = 0.7;
  EmuTrainer called(options, false), repeated(options, true);
  std::vector<StepReport> reports = check_same(called, repeated, 3);
  const nlohmann::json early = called.f.trainer->state();
  std::ranges::copy(check_same(called, repeated, 10), std::back_inserter(reports));
  CHECK(repeated.f.vcas().controller().probes() == 2);
  CHECK(repeated.f.vcas().controller().act_ratio()[0] < 1);
  CHECK(repeated.f.ops->waits() == 10);  // each step for its loss; no probe for what it measures

  // Two of the steps after a probe call, the others repeat. So do two of all that are measured,
  // which are exact at any ratios. A separate probe ends with the step before which it ran.
  std::vector<bool> meant;
  int since_probe = 0, measured = 0;
  for (const StepReport& report : reports) {
    meant.push_back((report.measured ? measured++ : since_probe++) < 2);
    if (report.probed) since_probe = 0;
  }
  CHECK(repeated.device->called == meant);
  CHECK(repeated.device->calls() < repeated.device->repetitions());
  // Back where the ratios were others.
  for (EmuTrainer* trainer : {&called, &repeated}) trainer->f.trainer->restore(early);
  check_same(called, repeated, 5);
}

// Each probe draws at other ratios: a draw of an earlier one, repeated, would be a wrong eta.
TEST_CASE("probes that draw rows are not repeated", "[trainer][repeat]") {
  TrainerOptions options = TrainerFixture::defaults();
  vcas_of(options).controller = "budget";
  vcas_of(options).update_every = 4;
  vcas_of(options).tau_act = vcas_of(options).tau_w = 0.2;
  EmuTrainer called(options, false), repeated(options, true);
  const std::vector<StepReport> reports = check_same(called, repeated, 20);
  const auto state = [](EmuTrainer& t) { return t.f.vcas().controller().to_json(); };
  CHECK(state(repeated) == state(called));
  const auto measured = std::ranges::count_if(reports, &StepReport::measured);
  CHECK(measured > 4);
  CHECK(repeated.device->repetitions() == 20 - (measured - 1));  // the first draws nothing
  CHECK(repeated.device->calls() < repeated.device->repetitions());
  const auto eta = state(called)["row_factor"].get<std::vector<double>>();
  CHECK(std::ranges::any_of(eta, [](double factor) { return factor != 1; }));
}

TEST_CASE("nothing is repeated where the host does not know the sizes", "[trainer][repeat]") {
  TrainerOptions options = sampled();
  if (GENERATE(false, true)) {
    vcas_of(options).selection = "bernoulli";
  } else {
    vcas_of(options).controller = "budget";
    vcas_of(options).kept_items = "by_norm";
  }
  EmuTrainer t(options, true);
  t.f.run(3);
  CHECK(t.device->called.empty());
}

namespace {

VcasOptions sampled_text() {
  VcasOptions vcas;
  vcas.act_ratio = {0.3, 0.6};
  vcas.weight_ratio = {0.5};
  return vcas;
}

// Batches of text: some of the same sizes, some of others.
std::vector<Batch> texts() {
  std::vector<Batch> out;
  for (int i = 0; i < 9; ++i)
    out.push_back(random_text(i % 3 == 1 ? TextTrainer::kItems - 2 : TextTrainer::kItems,
                              TextTrainer::kVocabulary, TextTrainer::kClasses, i));
  return out;
}

}  // namespace

TEST_CASE("passes over texts of different lengths are repeated", "[trainer][text][repeat]") {
  const std::string head = GENERATE(
      from_range(cases_to_run<std::string>({"classification", "regression", "mlm", "lm"})));
  const bool exact = GENERATE(false, true);
  const auto method = exact ? std::nullopt : std::optional(sampled_text());
  INFO(head << (exact ? ", exact" : ", vcas"));
  auto* device = new EmuOps(true);
  TextTrainer repeated(head, 0, method, std::unique_ptr<Ops>(device));
  TextTrainer called(head, 0, method, std::make_unique<EmuOps>(false));
  TextTrainer cpu(head, 0, method);
  for (const Batch& batch : texts()) {
    const double loss = repeated.trainer->step(batch).loss;
    CHECK(loss == called.trainer->step(batch).loss);
    CHECK(std::abs(loss - cpu.trainer->step(batch).loss) <= 1e-5 * loss);
  }
  CHECK(device->repetitions() == 9);
  CHECK(device->calls() == 4);
  CHECK(repeated.ops.waits() == 9);  // for losses, as in exact steps
}

TEST_CASE("an even batch of text has a pass of its own", "[trainer][text][repeat]") {
  Batch batch = texts().front();
  batch.tokens.resize(2 * static_cast<std::size_t>(TextTrainer::kItems), 1);
  batch.token_types.resize(batch.tokens.size());
  for (std::size_t n = 0; n < batch.offsets.size(); ++n)
    batch.offsets[n] = 2 * static_cast<std::int64_t>(n);
  auto* device = new EmuOps(true);
  TextTrainer repeated("classification", 0, sampled_text(), std::unique_ptr<Ops>(device));
  TextTrainer called("classification", 0, sampled_text(), std::make_unique<EmuOps>(false));
  for (int i = 0; i < 4; ++i)
    CHECK(repeated.trainer->step(batch).loss == called.trainer->step(batch).loss);
  CHECK(device->calls() == 2);
  repeated.trainer->step(texts().front());
  CHECK(device->calls() == 3);
}

TEST_CASE("an evaluation between repetitions changes nothing", "[trainer][repeat]") {
  EmuTrainer plain(sampled(), true), looked(sampled(), true);
  RandomBatches other(16, 500);
  plain.f.run(3);
  looked.f.run(3);
  looked.f.trainer->evaluate(other.next());
  plain.f.run(5);
  looked.f.run(5);
  CHECK(looked.f.weights() == plain.f.weights());
}

TEST_CASE("batches of two sizes have a pass each", "[trainer][repeat]") {
  EmuTrainer called(sampled(), false), repeated(sampled(), true);
  RandomBatches large(16);
  RandomBatches small(10, 500);
  for (int i = 0; i < 8; ++i) {
    const Batch& batch = i % 2 ? small.next() : large.next();
    const StepReport want = called.f.trainer->step(batch);
    INFO("step " << i + 1);
    CHECK(repeated.f.trainer->step(batch).loss == want.loss);
    CHECK(repeated.f.weights() == called.f.weights());
  }
  CHECK(repeated.device->calls() == 4);
}
