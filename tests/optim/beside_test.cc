// Weight gradients beside the rest of a backward: the same bits whatever the device does first.
#include "kernels/emu/emu_ops.h"
#include "tests/optim/text_fixture.h"
#include "tests/optim/trainer_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/fewer_cases.h"

using namespace vcas;

namespace {

using emu::ThreadOrder;

constexpr std::int64_t kSteps = VCAS_ASAN || VCAS_TSAN ? 4 : 7;  // with one probe, or two
constexpr ThreadOrder kLate[] = {ThreadOrder::kRandom, ThreadOrder::kReverse};

VcasOptions sampled(const std::string& selection) {
  VcasOptions vcas;
  vcas.selection = selection;
  vcas.controller = "paper";
  vcas.update_every = 3;
  vcas.act_ratio = {0.4, 0.7};
  vcas.weight_ratio = {0.5};
  return vcas;
}

// trained(order) gives what a run ends with.
template <class F>
void check_orders(const F& trained) {
  const auto want = trained(ThreadOrder::kForward);
  for (const ThreadOrder order : cases_to_run(kLate)) CHECK(trained(order) == want);
}

}  // namespace

TEST_CASE("a branch of weight gradients changes no bit of a ViT", "[trainer][beside]") {
  const auto [method, selection] = GENERATE(table<std::string, std::string>(
      {{"exact", "systematic"}, {"vcas", "systematic"}, {"vcas", "bernoulli"}}));
  TrainerOptions options = TrainerFixture::defaults();
  vcas_of(options) = sampled(selection);
  options.method.type = method;
  options.micro_batch = GENERATE(from_range(cases_to_run({8, 0})));
  INFO(method << ", " << selection << ", " << options.micro_batch);
  check_orders([&](ThreadOrder order) {
    TrainerFixture f(options, 0.1, make_emu_ops(order));
    f.run(kSteps);
    return f.weights();
  });
}

TEST_CASE("a branch of weight gradients changes no bit of a convolutional network",
          "[trainer][beside]") {
  TrainerOptions options = TrainerFixture::defaults();
  vcas_of(options) = sampled("systematic");
  vcas_of(options).act_ratio = {0.6};
  options.method.type = GENERATE("exact", "vcas");
  INFO(options.method.type);
  check_orders([&](ThreadOrder order) {
    TrainerFixture f(options, {"type=resnet", "stem=cifar", "stages=[1, 1]", "widths=[6, 8]"},
                     make_emu_ops(order));
    f.run(kSteps);
    return f.weights();
  });
}

TEST_CASE("a branch of weight gradients changes no bit of a BERT", "[trainer][text][beside]") {
  const std::string head = GENERATE("classification", "mlm", "lm");
  const bool exact = GENERATE(false, true);
  INFO(head << (exact ? ", exact" : ", vcas"));
  check_orders([&](ThreadOrder order) {
    TextTrainer t(head, 0, exact ? std::nullopt : std::optional(sampled("systematic")),
                  make_emu_ops(order));
    std::vector<double> all;
    for (std::int64_t i = 0; i < kSteps; ++i)
      all.push_back(t.trainer
                        ->step(random_text(TextTrainer::kItems, TextTrainer::kVocabulary,
                                           TextTrainer::kClasses, i % 2))
                        .loss);
    return all;
  });
}
