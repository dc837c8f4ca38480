// Plans that cannot be, and calls of a graph out of order.
#include <fmt/format.h>

#include <functional>

#include "layers/graph.h"
#include "tests/support/check_error.h"

using namespace vcas;

namespace {

// Copies its input, and plans what a test wants.
class Planned final : public Layer {
 public:
  explicit Planned(std::function<void(NodePlan&)> change) : change_(std::move(change)) {}
  NodePlan plan(const PlanInput& in) const override {
    NodePlan plan{.output = in.inputs[0]};
    change_(plan);
    return plan;
  }
  void forward(Exec&, const ForwardIo&) const override {}
  void backward(Exec&, const BackwardIo&) const override {}

 private:
  std::function<void(NodePlan&)> change_;
};

std::string fault_of(const std::function<void()>& call) {
  const Error error = error_of(call);
  if (error.code() == ExitCode::kDone) return "";
  CHECK(error.code() == ExitCode::kBadConfig);
  CHECK_FALSE(error.hint().empty());
  return error.what();
}

// Without the name of the node, and of the layer's type.
std::string plan_fault(std::function<void(NodePlan&)> change) {
  const std::string fault = fault_of([&] {
    const auto ops = make_ops("cpu");
    Graph graph(DType::kF32);
    const Value x = graph.input("x", {4, Layout::items(1), DType::kF32});
    graph.add("mine", std::make_unique<Planned>(change), {x});
    graph.finish(*ops, {.max_items = 2});
  });
  const std::string name = "mine ((anonymous namespace)::Planned): ";
  CHECK(fault.starts_with(name));
  return fault.substr(std::min(name.size(), fault.size()));
}

ParameterSpec weight(const Shape& shape) { return {.name = "weight", .shape = shape}; }

struct Small {
  std::unique_ptr<Ops> ops = make_ops("cpu");
  Graph graph{DType::kF32};
  Value x, out, loss;

  Small() {
    x = graph.input("x", {4, Layout::items(1), DType::kF32});
    const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
    out = graph.add("out", make_layer("linear", {{"width", 4}}), {x});
    loss = graph.add("loss", make_layer("softmax_cross_entropy"), {out, labels});
  }
  void finish() { graph.finish(*ops, {.max_items = 2}); }
};

}  // namespace

TEST_CASE("a plan that cannot be is refused with its node and type", "[graph]") {
  CHECK(plan_fault([](NodePlan& p) { p.passes_gradient = {7}; }) ==
        "passes_gradient names input 7 of 1; the first is 0");
  CHECK(plan_fault([](NodePlan& p) {
          p.passes_gradient = {0, 0};
        }) == "passes_gradient names input 0 twice");
  CHECK(plan_fault([](NodePlan& p) { p.passes_gradient = {0}, p.output.width = 5; }) ==
        "passes_gradient names input 0, whose shape is not that of the output");
  CHECK(plan_fault([](NodePlan& p) {
          p.passes_gradient = {0}, p.output.layout = Layout::items(2);
        }) == "passes_gradient names input 0, whose shape is not that of the output");
  CHECK(plan_fault([](NodePlan& p) { p.saved_inputs = {-1}; }) ==
        "saved_inputs names input -1 of 1; the first is 0");
  CHECK(plan_fault([](NodePlan& p) { p.is_sum = true; }) ==
        "is_sum needs two inputs, and there are 1");
  CHECK(plan_fault([](NodePlan& p) { p.output.width = 0; }) ==
        "output.width is 0, and must be at least 1");
  CHECK(plan_fault([](NodePlan& p) { p.output.layout = Layout::items(0); }) ==
        "output.layout has 0 rows an item");
  CHECK(plan_fault([](NodePlan& p) { p.saved = {{.width = -4}}; }) ==
        "saved.width is -4, and must be at least 1");
  CHECK(plan_fault([](NodePlan& p) { p.output_norm_parts = 0; }) ==
        "norms have at least one part a row");
  CHECK(plan_fault([](NodePlan& p) { p.dx_norm_parts = 0; }) ==
        "norms have at least one part a row");
  for (bool NodePlan::*shared : {&NodePlan::in_place, &NodePlan::accumulates})
    CHECK(plan_fault([shared](NodePlan& p) { p.dx_norm_parts = 2, p.*shared = true; }) ==
          "writes norms of parts of a dx that is not its own");
  CHECK(plan_fault([](NodePlan& p) { p.parameters = {weight({})}; }) ==
        "weight has shape [], which holds nothing");
  CHECK(plan_fault([](NodePlan& p) {
          p.state = {weight({2, -3})};
        }) == "weight has shape [2, -3], which holds nothing");
  const std::string no_weight =
      "samples_weight needs a weight [output.width, inputs] as parameter 0";
  CHECK(plan_fault([](NodePlan& p) { p.samples_weight = true; }) == no_weight);
  CHECK(plan_fault([](NodePlan& p) { p.samples_weight = true, p.parameters = {weight({4})}; }) ==
        no_weight);
  CHECK(plan_fault([](NodePlan& p) {
          p.samples_weight = true, p.parameters = {weight({5, 4})};
        }) == no_weight);
  CHECK(plan_fault([](NodePlan& p) {
          p.samples_weight = true, p.parameters = {weight({4, 4})};
        }) == "samples_weight needs input 0 in saved_inputs");
  CHECK(plan_fault([](NodePlan& p) { p.samples_weight = true, p.passes_gradient = {0}; }) ==
        "samples its weight gradient from a dy that does not stay");
  const std::string others =
      "gathers_dy needs a dy for backward alone, without in_place, passes_gradient and "
      "samples_weight";
  CHECK(plan_fault([](NodePlan& p) { p.gathers_dy = p.in_place = true; }) == others);
  CHECK(plan_fault([](NodePlan& p) { p.gathers_dy = true, p.passes_gradient = {0}; }) == others);
  CHECK(plan_fault([](NodePlan& p) { p.gathers_dy = p.samples_weight = true; }) == others);
}

TEST_CASE("an input without width, and a layer without inputs, are refused", "[graph]") {
  const auto ops = make_ops("cpu");
  Graph empty(DType::kF32), alone(DType::kF32);
  empty.input("x", {});
  CHECK(fault_of([&] { empty.finish(*ops, {.max_items = 2}); }) ==
        "x: output.width is 0, and must be at least 1");
  class Source final : public Layer {
    NodePlan plan(const PlanInput& in) const override { return {.output = in.inputs[0]}; }
    void forward(Exec&, const ForwardIo&) const override {}
    void backward(Exec&, const BackwardIo&) const override {}
  };
  alone.add("source", std::make_unique<Source>(), {});
  CHECK_THAT(fault_of([&] { alone.finish(*ops, {.max_items = 2, .max_tokens = 8}); }),
             ContainsSubstring("Source): a layer has at least one input"));
}

TEST_CASE("a graph has a type that its device computes", "[graph]") {
  const auto cpu = make_ops("cpu"), both = make_ops("check:cpu,emu"), emu = make_ops("emu");
  const auto fault = [](DType dtype, Ops& ops) {
    return fault_of([&] {
      Graph graph(dtype);
      const Value x = graph.input("x", {4, Layout::items(1), dtype});
      const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
      graph.add("loss", make_layer("softmax_cross_entropy"), {x, labels});
      graph.finish(ops, {.max_items = 2});
    });
  };
  CHECK(fault(DType::kI32, *cpu) == "a graph of i32");
  const std::string no_bf16 = "a graph of bf16 on the device ";
  CHECK(fault(DType::kBF16, *cpu) == no_bf16 + "cpu, which has no such type");
  CHECK(fault(DType::kBF16, *both) == no_bf16 + "check:cpu,emu, which has no such type");
  for (const DType dtype : {DType::kF32, DType::kF64}) CHECK(fault(dtype, *cpu).empty());
  CHECK(fault(DType::kBF16, *emu).empty());
}

TEST_CASE("what a layer throws names its node, and what a device throws does not", "[graph]") {
  class Throws final : public Layer {
   public:
    explicit Throws(std::function<void(const std::string&)> at) : at_(std::move(at)) {}
    NodePlan plan(const PlanInput& in) const override { return {.output = in.inputs[0]}; }
    void forward(Exec&, const ForwardIo&) const override { at_("forward"); }
    void backward(Exec&, const BackwardIo&) const override { at_("backward"); }

   private:
    std::function<void(const std::string&)> at_;
  };
  const std::string pass = GENERATE("forward", "backward");
  const auto train = [&](const auto& error) {
    const auto ops = make_ops("cpu");
    Graph graph(DType::kF32);
    const Value x = graph.input("x", {4, Layout::items(1), DType::kF32});
    const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
    const Value hidden = graph.add("hidden", make_layer("linear", {{"width", 4}}), {x});
    const auto at = [&](const std::string& now) {
      if (now == pass) throw error;
    };
    const Value out = graph.add("mine", std::make_unique<Throws>(at), {hidden});
    graph.add("loss", make_layer("softmax_cross_entropy"), {out, labels});
    graph.finish(*ops, {.max_items = 2});
    graph.set_batch(2, {});
    Exec exec = graph.make_exec(1, 0, true);
    graph.forward(exec);
    graph.backward(exec, {.gradients = {graph.parameters().gradient_list()}});
  };
  const Error error =
      error_of([&] { train(Error(ExitCode::kBadData, "no such row", "take another")); });
  CHECK(error.code() == ExitCode::kBadData);
  CHECK(error.what() == std::string("mine: no such row"));
  CHECK(error.hint() == "take another");
  CHECK(fault_of([&] { train(Error(ExitCode::kBadConfig, "no", "yes")); }) == "mine: no");
  CHECK_THROWS_AS(train(InternalError("no such row")), InternalError);
  CHECK_THROWS_WITH(train(InternalError("no such row")), "mine: no such row");
  CHECK_THROWS_WITH(train(Error(ExitCode::kUnavailable, "lost")), "lost");
  CHECK_THROWS_AS(train(std::out_of_range("no such row")), InternalError);
  CHECK_THROWS_WITH(train(std::out_of_range("no such row")), "mine: no such row");
  CHECK_THROWS_AS(train(std::bad_alloc()), std::bad_alloc);
}

TEST_CASE("the last node is a loss", "[graph]") {
  const auto ops = make_ops("cpu");
  Graph empty(DType::kF32), given(DType::kF32);
  CHECK(fault_of([&] { empty.finish(*ops, {.max_items = 2}); }) == "the graph has no loss");
  given.input("x", {4, Layout::items(1), DType::kF32});
  CHECK(fault_of([&] { given.finish(*ops, {.max_items = 2}); }) == "the graph has no loss");
  for (const char* layer : {"linear", "gelu"}) {
    Graph graph(DType::kF32);
    const Value in = graph.input("x", {4, Layout::items(1), DType::kF32});
    const nlohmann::json settings =
        layer == std::string("linear") ? nlohmann::json{{"width", 1}} : nlohmann::json::object();
    graph.add("out", make_layer(layer, settings), {in});
    CHECK(fault_of([&] { graph.finish(*ops, {.max_items = 2}); }) ==
          "out is the last node, and no loss");
  }
  Graph passes(DType::kF32);
  const Value x = passes.input("x", {1, Layout::items(1), DType::kF32});
  passes.add("out", std::make_unique<Planned>([](NodePlan& p) { p.passes_gradient = {0}; }), {x});
  CHECK(fault_of([&] { passes.finish(*ops, {.max_items = 2}); }) ==
        "out is the last node, and no loss");
}

TEST_CASE("nodes and parameters have names of their own", "[graph]") {
  Small nodes, parameters, state;
  nodes.graph.add("out", make_layer("gelu"), {nodes.out});
  CHECK(fault_of([&] { nodes.finish(); }) == "two nodes are called \"out\"");
  const auto named = [](const char* name) {
    return std::make_unique<Planned>(
        [name](NodePlan& p) { p.parameters = {{.name = name, .shape = {4}}}; });
  };
  parameters.graph.add("mine", named("a.b"), {parameters.out});
  parameters.graph.add("mine.a", named("b"), {parameters.out});
  CHECK(fault_of([&] { parameters.finish(); }) == "two parameters are called \"mine.a.b\"");
  state.graph.add("mine", named("a.b"), {state.out});
  state.graph.add("mine.a", std::make_unique<Planned>([](NodePlan& p) {
                    p.state = {{.name = "b", .shape = {4}}};
                  }),
                  {state.out});
  CHECK(fault_of([&] { state.finish(); }) == "two parameters are called \"mine.a.b\"");
  CHECK(plan_fault([](NodePlan& p) { p.parameters = p.state = {weight({4})}; }) ==
        "two parameters are called \"weight\"");
}

TEST_CASE("only nodes with parameters are tied", "[graph]") {
  Small small;
  const Value gelu = small.graph.add("gelu", make_layer("gelu"), {small.out});
  small.graph.tie(gelu, small.out);
  CHECK(fault_of([&] { small.finish(); }) == "gelu cannot be tied to out: gelu has no parameters");
  Small other;
  const Value owner = other.graph.add("gelu", make_layer("gelu"), {other.out});
  other.graph.tie(other.graph.add("more", make_layer("linear", {{"width", 4}}), {owner}), owner);
  CHECK(fault_of([&] { other.finish(); }) == "more cannot be tied to gelu: gelu has no parameters");
  Small input;
  input.graph.tie(input.graph.input("y", {4, Layout::items(1), DType::kF32}), input.out);
  input.graph.add("last", make_layer("squared_error"), {});
  CHECK(fault_of([&] { input.finish(); }) == "y cannot be tied to out: y has no parameters");
}

TEST_CASE("a value has one gate", "[graph]") {
  Small small;
  small.graph.gate(small.out);
  CHECK(fault_of([&] { small.graph.gate(small.out); }) == "two gates at out");
  Small last;
  last.graph.gate(last.loss);
  CHECK(fault_of([&] { last.finish(); }) == "sampling gate at loss: no gradient flows there");
  Small aside;
  const Value linear = aside.graph.add("aside", make_layer("linear", {{"width", 4}}), {aside.x});
  aside.graph.gate(linear);
  const Value labels = aside.graph.input("more", {1, Layout::items(1), DType::kI32});
  aside.graph.add("last", make_layer("softmax_cross_entropy"), {aside.out, labels});
  CHECK(fault_of([&] { aside.finish(); }) == "sampling gate at aside: no gradient flows there");
}

TEST_CASE("a graph has room for an item and a rank, and not for less than nothing", "[graph]") {
  const auto ops = make_ops("cpu");
  for (const GraphLimits& limits : {GraphLimits{},
                                    {.max_items = 2, .max_tokens = -5},
                                    {.max_items = 2, .max_masked = -1},
                                    {.max_items = 2, .ranks = 0}})
    CHECK(fault_of([&] { Small().graph.finish(*ops, limits); }) ==
          fmt::format("a graph for {} items, {} tokens and {} masked positions on {} ranks",
                      limits.max_items, limits.max_tokens, limits.max_masked, limits.ranks));
}

TEST_CASE("layers that need a row of each item refuse masked positions", "[graph]") {
  const auto ops = make_ops("cpu");
  const auto fault = [&](const char* kind, const nlohmann::json& settings,
                         const std::vector<Layout>& layouts) {
    Graph graph(DType::kF32);
    std::vector<Value> inputs;
    for (const Layout layout : layouts)
      inputs.push_back(
          graph.input(layout.text(), {layout == Layout::masked() ? 8 : 4, layout, DType::kF32}));
    graph.add("reads", make_layer(kind, settings), inputs);
    return fault_of([&] { graph.finish(*ops, {.max_items = 2, .max_masked = 4}); });
  };
  const Layout one = Layout::items(1), masked = Layout::masked();
  const std::string text = ": items may have no masked positions, and each needs a row";
  CHECK(fault("pool", {{"pooling", "mean"}}, {masked}) == "reads: pool" + text);
  CHECK(fault("group_norm", {{"groups", 2}}, {masked}) == "reads: group_norm" + text);
  CHECK(fault("attention", {{"heads", 1}}, {one, masked}) == "reads: attention" + text);
}

TEST_CASE("a batch says which tokens its items have", "[graph]") {
  const auto ops = make_ops("cpu");
  Graph graph(DType::kF32);
  const Value x = graph.input("x", {4, Layout::tokens(), DType::kF32});
  const Value labels = graph.input("labels", {1, Layout::tokens(), DType::kI32});
  graph.add("loss", make_layer("softmax_cross_entropy"), {x, labels});
  graph.finish(*ops, {.max_items = 2, .max_tokens = 4});
  CHECK(fault_of([&] { graph.set_batch(2, {}); }) == "a batch without offsets of its tokens");
  for (int time = 0; time < 2; ++time) {
    graph.set_batch(2, {0, 1, 4});
    const RowSet& rows = graph.full_rows().of(Layout::tokens());
    CHECK(rows.rows == 4);
    CHECK(rows.length == 0);
    CHECK(rows.squares == 1 + 9);
  }
  graph.set_batch(2, {0, 2, 4});
  CHECK(graph.full_rows().of(Layout::tokens()).length == 2);
  check_error(
      [&] {
        graph.set_batch(2, {0, 4, 4});
      },
      ExitCode::kBadData, "a batch of 2 items, and item 1 has no tokens",
      "an item of text has at least one");
}

TEST_CASE("a hook at a gate leaves rows, also where it keeps none", "[graph]") {
  struct Forgetful final : BackwardHooks {
    std::vector<RowSets> left;
    std::span<const RowSets> at_gate(Exec&, const GateSite&, Gradient&, const RowSets&) override {
      return left;
    }
  } hooks;
  Small small;
  small.graph.gate(small.out);
  small.finish();
  small.graph.set_batch(2, {});
  Exec exec = small.graph.make_exec(1, 0, true);
  small.graph.forward(exec);
  const std::vector<Tensor> gradients = small.graph.parameters().gradient_list();
  for (int i = 0; i < 2; ++i) {
    CHECK(fault_of([&] {
            small.graph.backward(exec, {.gradients = {gradients}, .hooks = &hooks});
          }) == "out: BackwardHooks::at_gate returned no rows");
    hooks.left.resize(1);  // without a layout
  }
}

TEST_CASE("calls of a graph out of order are refused", "[graph]") {
  Small small;
  Graph& graph = small.graph;
  const std::vector<Tensor> short_list;
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { graph.tensor(small.x); }, [&] { graph.saved(small.loss, 0); },
           [&] { graph.set_batch(2, {}); }, [&] { graph.make_exec(1, 0, true); }})
    CHECK_THAT(fault_of(call), ContainsSubstring(" before finish"));
  CHECK(fault_of([&] { graph.gate(Value{77}); }) == "the graph has no value 77, of 4");
  CHECK(fault_of([&] { graph.keep(Value{}); }) == "the graph has no value -1, of 4");
  CHECK(fault_of([&] { graph.add("none", nullptr, {small.x}); }) == "none has no layer");
  CHECK(fault_of([&] { graph.tie(small.x, small.out); }) == "x is tied to no node before it");
  CHECK(fault_of([&] { graph.tie(small.out, small.out); }) == "out is tied to no node before it");
  CHECK(fault_of([&] { graph.add("ahead", make_layer("gelu"), {Value{7}}); }) ==
        "the graph has no value 7, of 4");

  Small failed;
  CHECK(fault_of([&] { failed.graph.finish(*failed.ops, {.max_items = 0}); }) != "");
  CHECK(fault_of([&] { failed.finish(); }) == "Graph::finish after a finish that failed");

  small.finish();
  CHECK(fault_of([&] { small.finish(); }) == "Graph::finish after finish");
  CHECK(fault_of([&] { graph.input("late", {4}); }) == "Graph::input after finish");
  CHECK(fault_of([&] { graph.add("late", make_layer("gelu"), {small.x}); }) ==
        "Graph::add after finish");
  CHECK(fault_of([&] { graph.gate(small.out); }) == "Graph::gate after finish");
  CHECK(fault_of([&] { graph.keep(small.out); }) == "Graph::keep after finish");
  CHECK(fault_of([&] { graph.tie(small.loss, small.out); }) == "Graph::tie after finish");
  Exec exec = graph.make_exec(1, 0, true);
  CHECK(fault_of([&] { graph.forward(exec); }) == "Graph::forward before set_batch");
  CHECK(fault_of([&] { graph.backward(exec, {}); }) == "Graph::backward before set_batch");
  CHECK(fault_of([&] { graph.tensor(small.out); }) == "Graph::tensor before set_batch");

  CHECK(fault_of([&] { graph.set_batch(3, {}); }) ==
        "a batch of 3 items, and the graph has room for 2");
  CHECK(fault_of([&] { graph.set_batch(0, {}); }) == "a batch without items");
  CHECK(fault_of([&] { graph.set_batch(2, {0, 1}); }) == "2 offsets of 2 items");
  CHECK(fault_of([&] { graph.set_batch(2, {0, 1, 2, 3}); }) == "4 offsets of 2 items");
  for (const std::vector<std::int64_t>& wrong :
       std::vector<std::vector<std::int64_t>>{{2, 3, 4}, {0, 40000000, 4}, {-1, 0, 0}}) {
    const std::string fault = "offsets of 2 items begin at another row than 0, or decrease";
    CHECK(fault_of([&] { graph.set_batch(2, wrong); }) == fault);
    CHECK(fault_of([&] { graph.set_batch(2, {}, wrong); }) == fault);
  }
  for (const int number : {9, -1}) {
    const std::string fault =
        "the graph has no sampled linear " + std::to_string(number) + ", of 1";
    CHECK(fault_of([&] { graph.gate_above(number); }) == fault);
    CHECK(fault_of([&] { graph.weight_layout(number); }) == fault);
  }
  graph.set_batch(2, {});
  CHECK(fault_of([&] { graph.backward(exec, {}); }) == "Graph::backward before forward");
  graph.forward(exec);
  graph.set_batch(1, {});
  CHECK(fault_of([&] { graph.backward(exec, {}); }) == "Graph::backward before forward");
  graph.set_batch(2, {});
  graph.forward(exec);
  CHECK(fault_of([&] { graph.backward(exec, {}); }) ==
        "Graph::backward got 0 gradients for 2 parameters");
  std::vector<Tensor> gradients = graph.parameters().gradient_list();
  std::swap(gradients[0], gradients[1]);
  CHECK(fault_of([&] { graph.backward(exec, {.gradients = {gradients}}); }) ==
        "Graph::backward got f32 [4] for the gradient of out.weight, which is f32 [4, 4]");
  gradients = graph.parameters().gradient_list();
  gradients[1].dtype = DType::kF64;
  CHECK(fault_of([&] { graph.backward(exec, {.gradients = {gradients}}); }) ==
        "Graph::backward got f64 [4] for the gradient of out.bias, which is f32 [4]");
  for (const int number : {1, 5})
    CHECK(fault_of([&] { graph.saved(small.loss, number); }) ==
          "loss has no saved tensor " + std::to_string(number) + ", of 1");
  CHECK(fault_of([&] { graph.tensor(Value{4}); }) == "the graph has no value 4, of 4");
}
