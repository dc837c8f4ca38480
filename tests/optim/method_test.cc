// A method of training in one file, and what follows from its registration.
#include "optim/methods/method.h"

#include <fmt/format.h>

#include "optim/methods/sampled_backward.h"
#include "tests/optim/method_settings.h"
#include "tests/optim/trainer_fixture.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

// Samples every other step, at one ratio for all gates.
class Alternating final : public Method {
 public:
  Alternating(const Training& training, double ratio)
      : sampled_(training.ops, training.model.graph.plan()), ratio_(ratio) {
    sampled_.pass.ratios = equal_ratios(training.model.graph.plan(), ratio, 1);
  }

  void begin_step(std::int64_t step) override { samples_now_ = step % 2 == 1; }
  PassKind next(std::int64_t) const override {
    return samples_now_ ? PassKind::kSampled : PassKind::kExact;
  }
  BackwardHooks* hooks(PassKind kind) override {
    return kind == PassKind::kSampled ? &sampled_ : nullptr;
  }
  std::size_t bytes() const override { return sampled_.bytes(); }
  bool samples() const override { return true; }
  std::string summary() const override { return fmt::format("every other step keeps {}", ratio_); }

 private:
  SampledBackward sampled_;
  double ratio_;
  bool samples_now_ = false;
};

struct AlternatingKind final : MethodKind {
  double ratio = 0.5;

  std::string summary() const override { return "every other step is sampled"; }
  void fields(Setting& v) {
    v.field("ratio", ratio, "Share of the items that a sampled step keeps.", above(0.0),
            at_most(1.0));
  }
  std::unique_ptr<Method> make(const Training& training) const override {
    return std::make_unique<Alternating>(training, ratio);
  }
};

VCAS_REGISTER_PART(MethodKind, "alternating", AlternatingKind);

// Exact, but the end of its first step throws.
class FailsAtEnd final : public Method {
 public:
  PassKind next(std::int64_t) const override { return PassKind::kExact; }
  bool end_step() override {
    if (steps_++ == 0) throw Error(ExitCode::kIoError, "no step ends");
    return false;
  }
  std::string summary() const override { return "exact"; }

 private:
  int steps_ = 0;
};

struct FailsAtEndKind final : MethodKind {
  std::string summary() const override { return "the end of the first step throws"; }
  std::unique_ptr<Method> make(const Training&) const override {
    return std::make_unique<FailsAtEnd>();
  }
};

VCAS_REGISTER_PART(MethodKind, "fails_at_end", FailsAtEndKind);

}  // namespace

TEST_CASE("a method is a part: it is read, and decides each step", "[trainer][method]") {
  TrainerOptions options = TrainerFixture::defaults();
  options.method = read_method(R"("type": "alternating", "ratio": 0.25)");
  TrainerFixture f(options);
  CHECK(f.trainer->method().summary() == "every other step keeps 0.25");
  double flops[2];
  for (const bool sampled : {false, true}) {
    const double before = f.ops->flops(Phase::kBackward);
    CHECK(f.run(f.trainer->steps() + 1).front().exact == !sampled);
    flops[sampled] = f.ops->flops(Phase::kBackward) - before;
  }
  CHECK(flops[1] < 0.75 * flops[0]);
  const nlohmann::json state = f.trainer->state();
  CHECK(state.at("method").at("type") == "alternating");
  // A fork may train by another.
  options.method = read_method(R"("type": "selective_backprop")");
  TrainerFixture fork(options);
  fork.trainer->restore(state);
  CHECK(fork.trainer->steps() == 2);
  CHECK(fork.trainer->state().at("method").at("type") == "selective_backprop");
}

TEST_CASE("a method that throws at the end of a step leaves no report of it",
          "[trainer][method][error]") {
  TrainerOptions options = TrainerFixture::defaults();
  options.method.type = "exact";
  TrainerFixture exact(options);
  options.method.type = "fails_at_end";
  TrainerFixture f(options);
  RandomBatches source(options.batch);
  const Batch first = source.next(), second = source.next();
  exact.trainer->step(first);
  CHECK_THROWS_WITH(f.trainer->step(first), "no step ends");
  CHECK(f.trainer->step(second).loss == exact.trainer->step(second).loss);
}

TEST_CASE("a fork with another controller starts it anew", "[trainer][method]") {
  TrainerOptions options = TrainerFixture::defaults();
  vcas_of(options).s_step = 0.3;
  vcas_of(options).tau_act = 1;
  TrainerFixture paper(options);
  paper.run(2);
  REQUIRE(paper.vcas().controller().act_ratio()[0] < 1);
  vcas_of(options).controller = "budget";
  TrainerFixture budget(options);
  budget.trainer->restore(paper.trainer->state());
  CHECK(budget.trainer->steps() == 2);
  CHECK(budget.vcas().controller().act_ratio()[0] == 1);
}

TEST_CASE("exact and vcas at ratios 1 have the same bits", "[trainer][method]") {
  TrainerOptions options = TrainerFixture::defaults();
  vcas_of(options).act_ratio = {1};
  TrainerFixture sampled(options);
  options.method.type = "exact";
  TrainerFixture exact(options);
  sampled.run(5);
  exact.run(5);
  CHECK(sampled.weights() == exact.weights());
}

TEST_CASE("settings of a method are its own", "[config][method]") {
  CHECK_THAT(method_error(R"("type": "exact", "ratio": 0.25)"),
             ContainsSubstring(
                 "\"ratio\" in \"method\" is a setting of \"alternating\", and method.type is "
                 "\"exact\""));
  CHECK_THAT(method_error(R"("type": "vacs")"), ContainsSubstring("did you mean \"vcas\"?"));
  CHECK_THAT(method_error(R"("type": "alternating", "ratio": 0)"),
             ContainsSubstring("method.ratio must be above 0"));
}
