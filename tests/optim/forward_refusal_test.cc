// What SampleF refuses, and what it says of runs that it saves nothing in.
#include "tests/optim/forward_fixture.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

// As BatchNorm would declare itself.
class BatchCoupled final : public Layer {
 public:
  NodePlan plan(const PlanInput& in) const override {
    return {.output = in.inputs[0], .coupling = RowCoupling::kBatch};
  }
  void forward(Exec&, const ForwardIo&) const override {}
  void backward(Exec&, const BackwardIo&) const override {}
};

struct Shape {
  bool gate = true, weights = true, mixes = false;
};

// What SampleF says of a linear model.
std::string error_of(const Shape& shape, std::int64_t batch = 8, std::int64_t items = 48) {
  const std::unique_ptr<Ops> ops = make_ops("cpu");
  Model model(DType::kF32);
  Graph& graph = model.graph;
  const Value values = graph.input("values", {8, Layout::items(1), DType::kF32});
  const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
  Value x = graph.add("block", make_layer("linear", {{"width", 8}}), {values});
  if (shape.gate) graph.gate(x);
  if (shape.mixes) x = graph.add("norm", std::make_unique<BatchCoupled>(), {x});
  model.logits = graph.add("head", make_layer("linear", {{"width", 4}}), {x});
  std::vector<Value> inputs = {model.logits, labels};
  if (shape.weights)
    inputs.push_back(model.weights =
                         graph.optional_input("weights", {1, Layout::items(1), DType::kF32}));
  model.loss = graph.add("loss", make_layer("softmax_cross_entropy"), inputs);
  graph.finish(*ops, {.max_items = batch});
  try {
    const Training training{
        .model = model, .ops = *ops, .batch = batch, .micro_batch = batch, .items = items};
    ForwardSample sample(training, {.forward = true, .forward_ratio = 0.5}, nullptr);
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kBadConfig);
    return std::string(error.what()) + " | " + error.hint();
  }
  return "no error";
}

struct Config {
  Part<MethodKind> method{"vcas", "What backward computes."};
  void fields(Setting& v) { v.section("method", method, "How gradients are computed."); }
};

std::string error_of_settings(const std::string& settings) {
  Config config;
  try {
    read_config(config, {.documents = {{"run.json", R"({"method": {)" + settings + "}}"}}});
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kBadConfig);
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("SampleF refuses models that no items can be left out of", "[forward]") {
  CHECK(error_of({}) == "no error");
  CHECK(error_of({.weights = false}) ==
        "method.forward: the loss of this model takes no weights of items | set "
        "method.forward=false");
  CHECK_THAT(error_of({.gate = false}), ContainsSubstring("has no gate"));
  CHECK_THAT(error_of({.mixes = true}),
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
                    ContainsSubstring("the loss has a term for each masked word"));
}

TEST_CASE("SampleF refuses steps of one item and data of unknown size", "[forward]") {
  CHECK(error_of({}, 1) ==
        "method.forward: a step of one item has nothing to drop | raise train.batch_size, or set "
        "method.forward=false");
  CHECK_THAT(error_of({}, 8, 0), ContainsSubstring("set TrainerOptions::items"));
  const std::vector<std::int64_t> item = {48}, rows = {1};
  CHECK_THROWS_WITH(ForwardFixture({}).forward().choose(0, item, rows),
                    ContainsSubstring("item 48 of the training data, and SampleF knows 48 items"));
}

TEST_CASE("SampleF needs a ratio, and its settings are in their ranges", "[forward][config]") {
  CHECK(error_of_settings(R"("forward": true, "forward_ratio": 0.5)") == "no error");
  CHECK(error_of_settings(R"("forward_ratio": 0.5)") == "no error");
  CHECK_THAT(error_of_settings(R"("forward": true)"),
             ContainsSubstring("method.forward_ratio is missing: the share of items that "
                               "method.forward keeps, above 0"));
  CHECK_THAT(error_of_settings(R"("forward_ratio": 1.5)"), ContainsSubstring("forward_ratio"));
  CHECK_THAT(error_of_settings(R"("forward_floor": 0)"), ContainsSubstring("above 0"));
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
