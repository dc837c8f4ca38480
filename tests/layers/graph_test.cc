#include "layers/graph.h"

#include <algorithm>
#include <cmath>

#include "kernels/decorators/count_ops.h"
#include "kernels/decorators/forwarding_ops.h"
#include "kernels/dry_ops.h"
#include "layers/memory_plan.h"
#include "optim/methods/sampled_backward.h"
#include "tests/support/check_error.h"

using namespace vcas;

namespace {

// A batch-coupled layer: what BatchNorm will declare.
class BatchCoupled final : public Layer {
 public:
  NodePlan plan(const PlanInput& in) const override {
    return {.output = in.inputs[0], .coupling = RowCoupling::kBatch, .in_place = true};
  }
  void forward(Exec&, const ForwardIo&) const override {}
  void backward(Exec&, const BackwardIo&) const override {}
};

// A loss (x + 1)^2 / 2 of each row: it has a slope where x is 0.
class RowLoss final : public Layer {
 public:
  NodePlan plan(const PlanInput& in) const override {
    return {.output = in.inputs[0],
            .saved_inputs = {0},
            .coupling = RowCoupling::kRows,
            .computes_on_host = true};
  }
  void forward(Exec&, const ForwardIo& io) const override {
    const auto *x = io.inputs[0].ptr<float>(), *end = x + io.inputs[0].elements();
    std::transform(x, end, io.output.ptr<float>(), [](float v) { return (v + 1) * (v + 1) / 2; });
  }
  void backward(Exec&, const BackwardIo& io) const override {
    const auto *x = io.inputs_full[0].ptr<float>(), *end = x + io.inputs_full[0].elements();
    std::transform(x, end, io.dx[0].ptr<float>(), [](float v) { return v + 1; });
  }
};

struct TwoLayers {
  Graph graph{DType::kF32};
  Value x, hidden, out;

  TwoLayers() {
    x = graph.input("x", {4, Layout::items(1), DType::kF32});
    const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
    hidden = graph.add("hidden", make_layer("linear", {{"width", 4}}), {x});
    middle = graph.add("middle", make_layer("linear", {{"width", 4}}), {hidden});
    out = graph.add("out", make_layer("add"), {hidden, middle});
    graph.add("loss", make_layer("softmax_cross_entropy"), {out, labels});
  }
  Value middle;
};

// Checks that a draw of all rows of `graph` gives the gradients of an exact pass.
// In such a draw each row weighs 1. `output` is what the loss classifies.
// Returns where draws were made.
std::vector<std::string> places_of_draws(CountOps& ops, Graph& graph, Value x, Value output) {
  const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
  graph.add("loss", make_layer("softmax_cross_entropy"), {output, labels});
  graph.finish(ops, {.max_items = 5});
  graph.parameters().initialize(ops, 1);
  graph.set_batch(5, {});
  const Tensor input = graph.tensor(x);
  for (std::int64_t i = 0; i < input.elements(); ++i)
    input.ptr<double>()[i] = philox_normal(philox_address({}), i);
  const Tensor slab = graph.parameters().gradients();
  const std::vector<Tensor> gradients = graph.parameters().gradient_list();
  Exec exec = graph.make_exec(1, 0, true);
  graph.forward(exec);
  const auto backward = [&](BackwardHooks* hooks) {
    ops.run(Fill{.y = slab, .value = 0});
    ops.reset();
    graph.backward(exec, {.gradients = {gradients}, .hooks = hooks});
    return std::vector<double>(slab.ptr<double>(), slab.ptr<double>() + slab.elements());
  };
  SampledBackward sampled(ops, graph.plan());
  sampled.pass.ratios.weight.assign(graph.sampled_weights().size(), std::nextafter(1, 0));
  const auto exact = backward(nullptr);
  const auto drawn = backward(&sampled);
  for (std::size_t i = 0; i < exact.size(); ++i) CHECK(std::abs(drawn[i] - exact[i]) < 1e-13);
  CHECK(std::ranges::any_of(exact, [](double g) { return g != 0; }));
  const auto places_of = [&](std::string_view op) {
    std::vector<std::string> places;
    for (const CostRow& row : ops.rows())
      if (row.op == op) places.push_back(row.place);
    return places;
  };
  CHECK(places_of(ColumnSum::kName) == places_of(DrawRows::kName));  // of all biases
  return places_of(DrawRows::kName);
}

}  // namespace

TEST_CASE("a gate that another path goes round is refused", "[graph]") {
  auto ops = make_ops("cpu");
  TwoLayers net;
  net.graph.gate(net.middle);
  CHECK_THROWS_WITH(net.graph.finish(*ops, {.max_items = 2}),
                    ContainsSubstring("not a cut edge") && ContainsSubstring("hidden"));
}

TEST_CASE("a gate above a batch-coupled layer is refused", "[graph]") {
  auto ops = make_ops("cpu");
  Graph graph(DType::kF32);
  const Value x = graph.input("x", {4, Layout::items(1), DType::kF32});
  const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
  Value y = graph.add("linear", make_layer("linear", {{"width", 4}}), {x});
  y = graph.add("norm", std::make_unique<BatchCoupled>(), {y});
  y = graph.add("top", make_layer("linear", {{"width", 4}}), {y});
  graph.gate(y);
  graph.add("loss", make_layer("softmax_cross_entropy"), {y, labels});
  CHECK_THROWS_WITH(graph.finish(*ops, {.max_items = 2}),
                    ContainsSubstring("norm") && ContainsSubstring("mixes the items of a batch"));
}

TEST_CASE("a gate where no gradient flows is refused", "[graph]") {
  auto ops = make_ops("cpu");
  TwoLayers net;
  net.graph.gate(net.x);
  CHECK_THROWS_WITH(net.graph.finish(*ops, {.max_items = 2}),
                    ContainsSubstring("no gradient flows"));
}

TEST_CASE("a layer adds to dx where its plan says so, and the graph elsewhere", "[graph]") {
  // y = x. Backward adds what it is given.
  class Same final : public Layer {
   public:
    explicit Same(bool accumulates) : accumulates_(accumulates) {}
    NodePlan plan(const PlanInput& in) const override {
      return {.output = in.inputs[0], .accumulates = accumulates_};
    }
    void forward(Exec& exec, const ForwardIo& io) const override {
      exec.ops.run(Copy{.y = io.output, .x = io.inputs[0]});
    }
    void backward(Exec& exec, const BackwardIo& io) const override {
      io.added[0] ? exec.ops.run(Add{.y = io.dx[0], .a = io.added[0], .b = io.dy})
                  : exec.ops.run(Copy{.y = io.dx[0], .x = io.dy});
    }

   private:
    bool accumulates_;
  };
  auto ops = make_ops("cpu");
  const auto bias_gradient = [&](bool accumulates) {
    Graph graph(DType::kF32);
    const Value x = graph.input("x", {4, Layout::items(1), DType::kF32});
    const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
    const Value hidden = graph.add("hidden", make_layer("linear", {{"width", 4}}), {x});
    const Value same = graph.add("same", std::make_unique<Same>(accumulates), {hidden});
    const Value sum = graph.add("sum", make_layer("add"), {same, hidden});
    graph.add("loss", make_layer("softmax_cross_entropy"), {sum, labels});
    graph.finish(*ops, {.max_items = 1});
    graph.set_batch(1, {});
    Exec exec = graph.make_exec(1, 0, true);
    graph.forward(exec);
    graph.backward(exec, {.gradients = {graph.parameters().gradient_list()}});
    const auto* bias = graph.parameters()[1].gradient.ptr<float>();
    return std::vector<float>(bias, bias + 4);
  };
  const std::vector<float> want = {-1.5, 0.5, 0.5, 0.5};  // 2 (softmax - label)
  CHECK(bias_gradient(true) == want);
  CHECK(bias_gradient(false) == want);
}

TEST_CASE("a tied weight is one parameter whose gradients add up", "[graph]") {
  auto ops = make_ops("cpu");
  // y = E[token] E^T, once with a table of its own in the decoder and once tied.
  const auto build = [&](bool tied) {
    auto graph = std::make_unique<Graph>(DType::kF64);
    const Value tokens = graph->input("tokens", {1, Layout::tokens(), DType::kI32});
    const Value labels = graph->input("labels", {1, Layout::tokens(), DType::kI32});
    const Value x =
        graph->add("table", make_layer("embedding", {{"vocabulary", 5}, {"width", 3}}), {tokens});
    const Value y =
        graph->add("decoder", make_layer("linear", {{"width", 5}, {"sampled", false}}), {x});
    if (tied) graph->tie(y, x);
    graph->add("loss", make_layer("softmax_cross_entropy"), {y, labels});
    graph->finish(*ops, {.max_items = 2, .max_tokens = 4});
    graph->parameters().initialize(*ops, 1);
    graph->set_batch(2, {0, 1, 4});
    const std::vector<std::int32_t> ids{4, 1, 4, 0}, next{1, 4, 0, 2};
    ops->copy_to_device(graph->tensor(tokens).data, ids.data(), graph->tensor(tokens).bytes());
    ops->copy_to_device(graph->tensor(labels).data, next.data(), graph->tensor(labels).bytes());
    return graph;
  };
  const auto tied = build(true), apart = build(false);
  REQUIRE(tied->parameters().size() == 2);
  REQUIRE(apart->parameters().size() == 3);
  CHECK(tied->parameters()[1].name == "decoder.bias");
  const Parameters& own = apart->parameters();
  ops->run(Copy{.y = own[1].value, .x = own[0].value});
  ops->run(Copy{.y = tied->parameters()[0].value, .x = own[0].value});
  const bool adds = GENERATE(true, false);  // to zeros; or replaces what there is
  for (Graph* graph : {tied.get(), apart.get()}) {
    const std::vector<Tensor> gradients = graph->parameters().gradient_list();
    ops->run(Fill{.y = graph->parameters().gradients(), .value = adds ? 0.0 : 7.0});
    Exec exec = graph->make_exec(1, 0, true);
    graph->forward(exec);
    graph->backward(exec, {.gradients = {gradients, adds}});
  }
  for (std::int64_t i = 0; i < own[0].gradient.elements(); ++i) {
    const double lookup = own[0].gradient.ptr<double>()[i];
    const double decoder = own[1].gradient.ptr<double>()[i];
    CHECK(std::abs(tied->parameters()[0].gradient.ptr<double>()[i] - (lookup + decoder)) < 1e-14);
    CHECK(std::abs(decoder) > 1e-6);
  }
}

TEST_CASE("a loss of independent rows leaves padding out", "[graph]") {
  const auto bias_gradient = [](const char* device) {
    const auto ops = make_ops(device);
    Graph graph(DType::kF32);
    const Value x = graph.input("x", {1, Layout::tokens(), DType::kF32});
    const Value y =
        graph.add("linear", make_layer("linear", {{"width", 1}, {"sampled", false}}), {x});
    graph.add("loss", std::make_unique<RowLoss>(), {y});
    graph.finish(*ops, {.max_items = 3, .max_tokens = 32});
    graph.parameters().initialize(*ops, 1);
    graph.set_batch(3, {0, 2, 3, 7});
    const RowSet& rows = graph.full_rows().of(Layout::tokens());
    std::vector<float> values(static_cast<std::size_t>(rows.rows));
    std::fill_n(values.begin(), 7, 1.0F);
    ops->copy_to_device(graph.tensor(x).data, values.data(), values.size() * sizeof(float));
    Exec exec = graph.make_exec(1, 0, true);
    graph.forward(exec);
    graph.backward(exec, {.gradients = {graph.parameters().gradient_list(), false}});
    const Tensor bias = graph.parameters()[1].gradient;
    float out = 0;
    ops->copy_to_host(&out, bias.data, sizeof out);
    return std::pair(out, rows.rows);
  };
  const auto cpu = bias_gradient("cpu"), emu = bias_gradient("emu");
  REQUIRE(emu.second > cpu.second);
  CHECK(std::abs(emu.first - cpu.first) < 1e-5);
}

TEST_CASE("a layer that the loss does not depend on gets no gradient", "[graph]") {
  auto ops = make_ops("cpu");
  Graph graph(DType::kF32);
  const Value x = graph.input("x", {4, Layout::items(1), DType::kF32});
  const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
  graph.add("aside", make_layer("linear", {{"width", 3}}), {x});
  const Value out = graph.add("out", make_layer("linear", {{"width", 4}}), {x});
  graph.add("loss", make_layer("softmax_cross_entropy"), {out, labels});
  graph.finish(*ops, {.max_items = 2});
  graph.set_batch(2, {});
  const std::vector<Tensor> gradients = graph.parameters().gradient_list();
  for (const Tensor& gradient : gradients) ops->run(Fill{.y = gradient, .value = 7});
  Exec exec = graph.make_exec(1, 0, true);
  graph.forward(exec);
  graph.backward(exec, {.gradients = {gradients, false}});
  for (const Parameter& parameter : graph.parameters().list())
    for (std::int64_t i = 0; parameter.name.starts_with("aside") && i < parameter.shape.elements();
         ++i)
      CHECK(parameter.gradient.ptr<float>()[i] == 0);
}

TEST_CASE("gradients of three uses of a weight add up in a backward that replaces them",
          "[graph]") {
  auto ops = make_ops("cpu");
  Graph graph(DType::kF32);
  const Value x = graph.input("x", {4, Layout::items(1), DType::kF32});
  const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
  const auto linear = [&](const char* name, Value from) {
    return graph.add(name, make_layer("linear", {{"width", 4}, {"sampled", false}}), {from});
  };
  const Value owner = linear("owner", x), second = linear("second", owner);
  const Value third = linear("third", second);
  graph.tie(second, owner);
  graph.tie(third, owner);
  graph.add("loss", make_layer("softmax_cross_entropy"), {third, labels});
  graph.finish(*ops, {.max_items = 2});
  graph.parameters().initialize(*ops, 1);
  graph.set_batch(2, {});
  for (int i = 0; i < 8; ++i) graph.tensor(x).ptr<float>()[i] = static_cast<float>(i % 3);
  const std::vector<Tensor> gradients = graph.parameters().gradient_list();
  const auto gradient = [&](bool adds) {
    for (const Tensor& of : gradients) ops->run(Fill{.y = of, .value = adds ? 0.0 : 7.0});
    Exec exec = graph.make_exec(1, 0, true);
    graph.forward(exec);
    graph.backward(exec, {.gradients = {gradients, adds}});
    std::vector<float> out;
    for (const Tensor& of : gradients)
      out.insert(out.end(), of.ptr<float>(), of.ptr<float>() + of.elements());
    return out;
  };
  CHECK(gradient(false) == gradient(true));
}

TEST_CASE("a sum adds a value to itself beside a value that reads the same gradient", "[graph]") {
  auto ops = make_ops("cpu");
  // 2 gelu + tanh, as add(gelu, gelu) + tanh or as gelu + tanh + gelu.
  const auto gradient = [&](bool doubled) {
    Graph graph(DType::kF64);
    const Value x = graph.input("x", {4, Layout::items(1), DType::kF64});
    const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
    const auto sum = [&](const char* name, Value a, Value b) {
      return graph.add(name, make_layer("add"), {a, b});
    };
    const Value in = graph.add("in", make_layer("linear", {{"width", 4}}), {x});
    const Value gelu = graph.add("gelu", make_layer("gelu"), {in});
    const Value tanh = graph.add("tanh", make_layer("tanh"), {in});
    const Value out = doubled ? sum("out", sum("twice", gelu, gelu), tanh)
                              : sum("out", sum("once", gelu, tanh), gelu);
    graph.add("loss", make_layer("softmax_cross_entropy"), {out, labels});
    graph.finish(*ops, {.max_items = 2});
    graph.parameters().initialize(*ops, 1);
    graph.set_batch(2, {});
    for (int i = 0; i < 8; ++i) graph.tensor(x).ptr<double>()[i] = i % 5 - 1.5;
    graph.tensor(labels).ptr<std::int32_t>()[1] = 2;
    const std::vector<Tensor> gradients = graph.parameters().gradient_list();
    Exec exec = graph.make_exec(1, 0, true);
    graph.forward(exec);
    graph.backward(exec, {.gradients = {gradients, false}});
    const Tensor& bias = gradients[1];
    return std::vector<double>(bias.ptr<double>(), bias.ptr<double>() + bias.elements());
  };
  const std::vector<double> doubled = gradient(true), apart = gradient(false);
  for (std::size_t i = 0; i < apart.size(); ++i) CHECK(std::abs(doubled[i] - apart[i]) < 1e-14);
  CHECK(std::abs(apart[0]) > 1e-3);
}

TEST_CASE("weights of different shapes, or sampled ones, are not tied", "[graph]") {
  auto ops = make_ops("cpu");
  for (const bool sampled : {false, true}) {
    Graph graph(DType::kF32);
    const Value tokens = graph.input("tokens", {1, Layout::tokens(), DType::kI32});
    const Value x =
        graph.add("table", make_layer("embedding", {{"vocabulary", 5}, {"width", 3}}), {tokens});
    const Value y = graph.add(
        "decoder", make_layer("linear", {{"width", sampled ? 5 : 6}, {"sampled", sampled}}), {x});
    graph.tie(y, x);
    check_whole_error([&] { graph.finish(*ops, {.max_items = 1, .max_tokens = 1}); },
                      ExitCode::kBadConfig,
                      sampled ? "decoder.weight [5, 3] cannot be tied to table.weight [5, 3]: its "
                                "gradient is sampled"
                              : "decoder.weight [6, 3] cannot be tied to table.weight [5, 3]",
                      "both have one shape, and the layer that is tied has sampled=false");
  }
}

TEST_CASE("sampled weight gradients wait in groups, and get what an exact pass gives", "[graph]") {
  CountOps ops(make_ops("cpu"));
  Graph graph(DType::kF64);
  const Value x = graph.input("x", {4, Layout::items(1), DType::kF64});
  Value y = x;
  for (int i = 0; i < 10; ++i)
    y = graph.add("linear." + std::to_string(i), make_layer("linear", {{"width", 4}}), {y});
  CHECK(places_of_draws(ops, graph, x, y) ==
        std::vector<std::string>{"linear.2/weights", "linear.0/weights"});
}

TEST_CASE("weight gradients wait for others that add to the gradient they read", "[graph]") {
  // That adds itself, by a copy, and for which the graph adds.
  for (const char* reader : {"layer_norm", "linear", "gelu"}) {
    INFO(reader);
    CountOps ops(make_ops("cpu"));
    Graph graph(DType::kF64);
    const Value x = graph.input("x", {4, Layout::items(1), DType::kF64});
    const nlohmann::json width = {{"width", 4}}, none = nlohmann::json::object();
    Value y = graph.add("in", make_layer("linear", width), {x});
    for (const char* block : {"block.0", "block.1"}) {
      const std::string name = block;
      const Value read =
          graph.add(name + ".read",
                    make_layer(reader, reader == std::string_view("linear") ? width : none), {y});
      const Value out = graph.add(name + ".out", make_layer("linear", width), {read});
      y = graph.add(name, make_layer("add"), {out, y});
    }
    CHECK(places_of_draws(ops, graph, x, y) == std::vector<std::string>{"in/weights"});
  }
}

TEST_CASE("weight gradients wait while another's gradient is changed in place", "[graph]") {
  CountOps ops(make_ops("cpu"));
  Graph graph(DType::kF64);
  const nlohmann::json width = {{"width", 4}};
  const Value x = graph.input("x", {4, Layout::items(1), DType::kF64});
  const Value in = graph.add("in", make_layer("linear", width), {x});
  const Value changed = graph.add("gelu", make_layer("gelu"), {in});
  const Value waits = graph.add("waits", make_layer("linear", width), {x});
  const Value sum = graph.add("sum", make_layer("add"), {waits, changed});
  CHECK(places_of_draws(ops, graph, x, sum) == std::vector<std::string>{"in/weights"});
}

TEST_CASE("a layer has the scratch that it plans, beside a dx that the graph adds", "[graph]") {
  constexpr std::int64_t kBytes = 1024;
  class Greedy final : public Layer {
   public:
    NodePlan plan(const PlanInput& in) const override {
      return {.output = in.inputs[0], .computes_on_host = true, .scratch_bytes = kBytes};
    }
    void forward(Exec&, const ForwardIo&) const override {}
    void backward(Exec& exec, const BackwardIo& io) const override {
      exec.scratch.take(DType::kU8, {kBytes});
      exec.ops.run(Copy{.y = io.dx[0], .x = io.dy});
    }
  };
  auto ops = make_ops("cpu");
  Graph graph(DType::kF32);
  const nlohmann::json width = {{"width", 256}};
  const Value x = graph.input("x", {4, Layout::items(1), DType::kF32});
  const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
  const Value in = graph.add("in", make_layer("linear", width), {x});
  const Value greedy = graph.add("greedy", std::make_unique<Greedy>(), {in});
  const Value beside = graph.add("beside", make_layer("linear", width), {in});
  const Value out = graph.add("out", make_layer("add"), {greedy, beside});
  graph.add("loss", make_layer("softmax_cross_entropy"), {out, labels});
  graph.finish(*ops, {.max_items = 2});
  graph.set_batch(2, {});
  Exec exec = graph.make_exec(1, 0, true);
  graph.forward(exec);
  CHECK_NOTHROW(graph.backward(exec, {.gradients = {graph.parameters().gradient_list()}}));
}

TEST_CASE("a layer that samples its weight gradient does not work in place", "[graph]") {
  class InPlace final : public Layer {
   public:
    NodePlan plan(const PlanInput& in) const override {
      return {.output = in.inputs[0], .in_place = true, .samples_weight = true};
    }
    void forward(Exec&, const ForwardIo&) const override {}
    void backward(Exec&, const BackwardIo&) const override {}
  };
  auto ops = make_ops("cpu");
  Graph graph(DType::kF32);
  const Value x = graph.input("x", {4, Layout::items(1), DType::kF32});
  graph.add("bad", std::make_unique<InPlace>(), {x});
  CHECK_THROWS_WITH(
      graph.finish(*ops, {.max_items = 2}),
      ContainsSubstring("InPlace): samples its weight gradient from a dy that does not"));
}

TEST_CASE("a layer that computes on the host is refused where the host sees no memory", "[graph]") {
  class OnHost final : public Layer {
   public:
    NodePlan plan(const PlanInput& in) const override {
      return {.output = in.inputs[0], .computes_on_host = true};
    }
    void forward(Exec&, const ForwardIo&) const override {}
    void backward(Exec&, const BackwardIo&) const override {}
  };
  class NamedCuda final : public ForwardingOps {
   public:
    NamedCuda() : ForwardingOps(make_ops("cpu")) {}
    std::string name() const override { return "cuda"; }
  };
  NamedCuda cuda;
  auto cpu = make_ops("cpu");
  for (Ops* ops : {static_cast<Ops*>(&cuda), cpu.get()}) {
    Graph graph(DType::kF32);
    const Value x = graph.input("x", {1, Layout::items(1), DType::kF32});
    graph.add("loops", std::make_unique<OnHost>(), {x});
    if (ops == &cuda)
      CHECK_THROWS_WITH(graph.finish(*ops, {.max_items = 2}),
                        ContainsSubstring("loops computes on the host, which cannot read"));
    else
      graph.finish(*ops, {.max_items = 2});
    CHECK_FALSE(graph.repeatable());
  }
}

TEST_CASE("a dry run skips loops of a layer's own: they have nothing to read", "[graph]") {
  class Loops final : public Layer {
   public:
    NodePlan plan(const PlanInput& in) const override {
      return {.output = in.inputs[0], .computes_on_host = true};
    }
    void forward(Exec&, const ForwardIo&) const override { FAIL("forward"); }
    void backward(Exec&, const BackwardIo&) const override { FAIL("backward"); }
  };
  CountOps ops(std::make_unique<DryOps>());
  Graph graph(DType::kF32);
  const Value x = graph.input("x", {4, Layout::items(1), DType::kF32});
  const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
  const Value hidden = graph.add("hidden", make_layer("linear", {{"width", 4}}), {x});
  const Value out = graph.add("loops", std::make_unique<Loops>(), {hidden});
  graph.add("loss", make_layer("softmax_cross_entropy"), {out, labels});
  graph.finish(ops, {.max_items = 2});
  graph.set_batch(2, {});
  Exec exec = graph.make_exec(1, 0, true);
  graph.forward(exec);
  const double flops = ops.flops(Phase::kForward);
  graph.backward(exec, {.gradients = {graph.parameters().gradient_list()}});
  CHECK(ops.flops(Phase::kForward) > flops);  // backward passes the loops
}

TEST_CASE("parameters that decay lie first, and all start apart by seed and place", "[graph]") {
  auto ops = make_ops("cpu");
  Graph graph(DType::kF64);
  const Value x = graph.input("x", {4, Layout::items(1), DType::kF64});
  const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
  Value y = graph.add("one", make_layer("linear", {{"width", 4}}), {x});
  y = graph.add("norm", make_layer("batch_norm"), {y});
  y = graph.add("two", make_layer("linear", {{"width", 4}}), {y});
  graph.add("loss", make_layer("softmax_cross_entropy"), {y, labels});
  graph.finish(*ops, {.max_items = 2});
  const Parameters& parameters = graph.parameters();
  CHECK(parameters.count() == 2 * (16 + 4) + 8);
  CHECK(parameters.elements() == parameters.masters().elements());
  for (const Parameter& parameter : parameters.list()) {
    const auto at = parameter.master.ptr<double>() - parameters.masters().ptr<double>();
    CHECK(parameter.decay == (at < parameters.decayed_elements()));
    CHECK(parameter.decay == (parameter.shape.rank() == 2));
  }
  CHECK(parameters.stored().back().name == "norm.running_var");
  const auto first_values = [&](std::uint64_t seed) {
    graph.parameters().initialize(*ops, seed);
    return std::pair(*parameters[0].value.ptr<double>(), *parameters[4].value.ptr<double>());
  };
  CHECK_FALSE(parameters.are_set());
  const auto first = first_values(1), other = first_values(2);
  CHECK(parameters.are_set());
  CHECK(first.first != first.second);
  CHECK(first.first != other.first);
}

TEST_CASE("memory blocks alive at the same time never overlap", "[graph]") {
  std::vector<PlannedBlock> blocks = {{100, 0, 3}, {200, 1, 2}, {50, 2, 5}, {300, 4, 6},
                                      {64, 0, 9},  {1, 3, 3},   {40, 3, 4}};
  const std::size_t total = plan_memory(blocks);
  std::size_t sum = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    sum += Arena::round_up(blocks[i].bytes);
    CHECK(blocks[i].offset % Arena::kAlignment == 0);
    CHECK(blocks[i].offset + blocks[i].bytes <= total);
    for (std::size_t j = 0; j < i; ++j) {
      const bool together = blocks[i].begin <= blocks[j].end && blocks[j].begin <= blocks[i].end;
      const bool apart = blocks[i].offset + blocks[i].bytes <= blocks[j].offset ||
                         blocks[j].offset + blocks[j].bytes <= blocks[i].offset;
      CHECK((!together || apart));
    }
  }
  CHECK(total < sum);
}

TEST_CASE("a batch may lack an optional input", "[graph]") {
  CountOps ops(make_ops("cpu"));
  Graph graph(DType::kF32);
  const Value x = graph.input("x", {4, Layout::items(1), DType::kF32});
  const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
  const Value weights = graph.optional_input("weights", {1, Layout::items(1), DType::kF32});
  const Value loss = graph.add("loss", make_layer("softmax_cross_entropy"), {x, labels, weights});
  graph.finish(ops, {.max_items = 2});
  graph.set_batch(2, {});
  const auto losses = [&] {
    Exec exec = graph.make_exec(1, 0, true);
    graph.forward(exec);
    const auto* values = graph.tensor(loss).ptr<float>();
    return std::vector<float>(values, values + 2);
  };
  CHECK_FALSE(graph.tensor(weights));
  const BatchShape without = graph.batch();
  const std::vector<float> plain = losses();
  CHECK(plain[0] > 1);
  graph.set_present(weights, true);
  CHECK_FALSE(graph.batch() == without);  // passes of both are not the same calls
  const Tensor given = graph.tensor(weights);
  REQUIRE(given.shape.text() == "[2, 1]");
  given.ptr<float>()[0] = 3;
  given.ptr<float>()[1] = 0.5f;
  CHECK(losses() == std::vector<float>{3 * plain[0], plain[1] / 2});
  graph.set_present(weights, false);
  CHECK(losses() == plain);
  CHECK_THROWS_WITH(graph.set_present(labels, false),
                    ContainsSubstring("labels is no optional input"));
}
