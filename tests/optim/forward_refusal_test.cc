// What SampleF refuses, and what it says of runs that it saves nothing in.
#include "tests/optim/forward_fixture.h"
#include "tests/optim/linear_model.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

// What SampleF says of a linear model.
std::string linear_refusal(const LinearModel& wanted, std::int64_t batch = 8,
                           std::int64_t items = 48) {
  const std::unique_ptr<Ops> ops = make_ops("cpu");
  const auto model = linear_model(wanted);
  model->graph.finish(*ops, {.max_items = batch});
  const Training training{
      .model = *model, .ops = *ops, .batch = batch, .micro_batch = batch, .items = items};
  return config_error_of(
      [&] { ForwardSample(training, {.forward = true, .forward_ratio = 0.5}, nullptr); });
}

}  // namespace

TEST_CASE("SampleF refuses models that no items can be left out of", "[forward]") {
  CHECK(linear_refusal({}) == "no error");
  CHECK(linear_refusal({.weights = false}) ==
        "method.forward: the loss of this model takes no weights of items | set "
        "method.forward=false");
  CHECK_THAT(linear_refusal({.gate = false}), ContainsSubstring("has no gate"));
  CHECK_THAT(linear_refusal({.mixes = true}),
             ContainsSubstring("norm mixes the items of a batch, so dropping items would bias"));
}

TEST_CASE("SampleF refuses masked words", "[forward]") {
  const std::unique_ptr<Ops> ops = make_ops("cpu");
  const auto model =
      build_model(read_model_options({"type=bert", "width=8", "depth=1", "heads=2", "vocabulary=11",
                                      "max_positions=8", "head=mlm"}),
                  {}, 0, 0.0);
  model->graph.finish(*ops, {.max_items = 4, .max_tokens = 32, .max_masked = 32});
  const Training training{.model = *model, .ops = *ops, .batch = 4, .micro_batch = 4, .items = 48};
  CHECK_THROWS_WITH(ForwardSample(training, {.forward = true, .forward_ratio = 0.5}, nullptr),
                    ContainsSubstring("the loss has a term for each predicted word"));
}

TEST_CASE("SampleF refuses steps of one item and data of unknown size", "[forward]") {
  CHECK(linear_refusal({}, 1) ==
        "method.forward: a step of one item has nothing to drop | raise train.batch_size, or set "
        "method.forward=false");
  CHECK_THAT(linear_refusal({}, 8, 0), ContainsSubstring("set TrainerOptions::items"));
  const std::vector<std::int64_t> item = {48}, rows = {1};
  CHECK_THROWS_WITH(ForwardFixture({}).forward().choose(0, item, rows),
                    ContainsSubstring("item 48 of the training data, and SampleF knows 48 items"));
}

TEST_CASE("SampleF needs a ratio, and its settings are in their ranges", "[forward][config]") {
  CHECK(method_error(R"("forward": true, "forward_ratio": 0.5)") == "");
  CHECK(method_error(R"("forward_ratio": 0.5)") == "");
  CHECK_THAT(method_error(R"("controller": "paper", "forward": true)"),
             ContainsSubstring("method.forward_ratio is missing: the share of items that "
                               "method.forward keeps, above 0"));
  CHECK_THAT(method_error(R"("act_ratio": [0.5], "forward": true)"),
             ContainsSubstring("method.forward_ratio is missing"));
  CHECK_THAT(method_error(R"("forward_ratio": 1.5)"), ContainsSubstring("forward_ratio"));
  CHECK_THAT(method_error(R"("forward_floor": 0)"), ContainsSubstring("above 0"));
}

TEST_CASE("a run of one epoch with SampleF is told that it drops nothing", "[forward]") {
  const auto complaint = [](std::int64_t steps) {
    return ForwardFixture({.total_steps = steps}).trainer->method().complaint().message;
  };
  CHECK_THAT(complaint(6), ContainsSubstring("drops nothing in a run of one epoch"));
  CHECK(complaint(7).empty());
  ForwardFixture probed({.total_steps = 6, .probes = true});
  CHECK(!probed.trainer->method().complaint().message.empty());
  probed.run(4);
  CHECK(probed.trainer->method().complaint().message.empty());
}

TEST_CASE("SampleF says what it keeps", "[forward]") {
  ForwardFixture f({});
  CHECK_THAT(f.trainer->method().summary(),
             ContainsSubstring("forward keeps 0.5 of items seen before"));
  f.run(18);
  CHECK_THAT(f.trainer->method().progress(), ContainsSubstring("forward 0.50"));
  CHECK(f.trainer->method().report().at("forward_ratio") == 0.5);
  ForwardFixture off({.ratio = 0});
  CHECK(!off.trainer->method().report().contains("forward_ratio"));
}
