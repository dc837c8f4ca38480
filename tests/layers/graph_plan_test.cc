// The plan of a graph by itself, with no device.
#include "layers/graph_plan.h"

#include <fmt/format.h>

#include "tests/support/catch.h"
#include "tests/support/check_error.h"

using namespace vcas;

namespace {

constexpr std::int64_t kItems = 4, kWidth = 8;

// A stack of linear and GELU on one row an item, a loss at its end.
struct Stack {
  GraphPlan plan;

  explicit Stack(int blocks) {
    int x = add("x", nullptr, {}, {kWidth, Layout::items(1), DType::kF32});
    for (int i = 0; i < blocks; ++i) {
      x = add("linear" + std::to_string(i), make_layer("linear", {{"width", kWidth}}), {x});
      x = add("gelu" + std::to_string(i), make_layer("gelu"), {x});
    }
    const int labels = add("labels", nullptr, {}, {1, Layout::items(1), DType::kI32});
    add("loss", make_layer("softmax_cross_entropy"), {x, labels});
  }

  int add(const std::string& name, std::unique_ptr<Layer> layer, std::vector<int> inputs,
          const ValueSpec& spec = {}) {
    GraphNode node;
    node.name = name;
    node.layer = std::move(layer);
    node.inputs = std::move(inputs);
    node.plan.output = spec;
    plan.nodes.push_back(std::move(node));
    return static_cast<int>(plan.nodes.size()) - 1;
  }
  const GraphNode& node(const std::string& name) const {
    return *std::ranges::find(plan.nodes, name, &GraphNode::name);
  }
};

bool overlap(const PlannedBlock& a, const PlannedBlock& b) {
  return a.begin <= b.end && b.begin <= a.end && a.offset < b.offset + b.bytes &&
         b.offset < a.offset + a.bytes;
}

}  // namespace

TEST_CASE("blocks that live at the same time lie apart, and reuse what is free", "[graph]") {
  Stack stack(6);
  stack.plan.gate_nodes = {4, 8};
  plan_graph(stack.plan, {.max_items = kItems});
  for (const auto* blocks : {&stack.plan.activation_blocks, &stack.plan.gradient_blocks})
    for (std::size_t i = 0; i < blocks->size(); ++i)
      for (std::size_t j = 0; j < i; ++j) CHECK_FALSE(overlap((*blocks)[i], (*blocks)[j]));
  std::size_t all = 0;
  for (const PlannedBlock& block : stack.plan.gradient_blocks) all += block.bytes;
  CHECK(stack.plan.memory.gradients < all);
  CHECK(stack.plan.memory.rows == 0);  // nothing was allocated
}

TEST_CASE("a plan numbers parameters, sampled weights and layouts", "[graph]") {
  Stack stack(2);
  plan_graph(stack.plan, {.max_items = kItems});
  REQUIRE(stack.plan.parameters.size() == 4);
  CHECK(stack.plan.parameters[2].name == "linear1.weight");
  CHECK(stack.plan.sampled_weights == std::vector<int>{0, 2});
  CHECK(stack.plan.layouts == std::vector{Layout::items(1)});
  CHECK_FALSE(stack.node("x").needs_gradient);
  CHECK(stack.node("linear0").dx[0].block == -1);  // nobody wants the gradient of an input
  CHECK(stack.node("gelu0").dx[0].block == stack.node("linear0").gradient_block);
  CHECK(stack.plan.max_rows(Layout::items(3)) == 3 * kItems);
}

TEST_CASE("what a norm adds up itself stays until then", "[graph]") {
  Stack stack(1);
  stack.plan.nodes.pop_back();
  const int linear = 1, gelu = 2;
  const int sum = stack.add("sum", make_layer("add"), {linear, gelu});
  const int norm = stack.add("norm", make_layer("layer_norm"), {sum});
  stack.add("loss", make_layer("softmax_cross_entropy"), {norm, 3});
  plan_graph(stack.plan, {.max_items = kItems});
  REQUIRE(stack.node("sum").leaves_sum);
  for (const int input : stack.node("sum").inputs)
    CHECK(stack.plan.activation_blocks[stack.plan.nodes[input].output_block].end >= norm);
}

TEST_CASE("sampled weight gradients wait at most to the next gate", "[graph]") {
  Stack stack(3);
  stack.plan.gate_nodes = {2};  // gelu0
  plan_graph(stack.plan, {.max_items = kItems});
  std::vector<std::string> flushing;
  for (const GraphNode& node : stack.plan.nodes)
    if (node.flushes_weights) flushing.push_back(node.name);
  CHECK(flushing == std::vector<std::string>{"linear0", "linear1"});
  // Until then the gradients that they read stay.
  const GraphPlan& plan = stack.plan;
  const auto block = static_cast<std::size_t>(stack.node("linear2").gradient_block);
  const int last = static_cast<int>(plan.nodes.size()) - 1, linear1 = 3;
  CHECK(plan.nodes[linear1].name == "linear1");
  CHECK(plan.gradient_blocks[block].end >= 2 * (last - linear1) + 1);
}

TEST_CASE("what runs beside a backward is read until the flush after its own", "[graph][beside]") {
  Stack stack(6), alone(6);
  // A sum passes its dy on, to the last linear of a branch. The first one adds to it, before a
  // flush or after.
  for (Stack* of : {&stack, &alone}) {
    of->plan.nodes.pop_back();
    int x = static_cast<int>(of->plan.nodes.size()) - 2;
    for (const int linears : {9, 2}) {
      int branch = x;
      for (int i = 0; i < linears; ++i)
        branch = of->add(fmt::format("branch of {}, {}", linears, i),
                         make_layer("linear", {{"width", kWidth}}), {branch});
      x = of->add(fmt::format("sum of {}", linears), make_layer("add"), {x, branch});
    }
    const int labels = of->add("more", nullptr, {}, {1, Layout::items(1), DType::kI32});
    of->add("loss", make_layer("softmax_cross_entropy"), {x, labels});
    of->plan.gate_nodes = {4, 8};
  }
  stack.plan.queues = true;
  for (Stack* of : {&stack, &alone}) plan_graph(of->plan, {.max_items = kItems});
  CHECK(stack.plan.memory.gradients > alone.plan.memory.gradients);
  CHECK(stack.plan.memory.scratch == alone.plan.memory.scratch);

  const std::vector<GraphNode>& nodes = stack.plan.nodes;
  const auto flush_after = [&](int node) {
    while (node > 0 && !nodes[static_cast<std::size_t>(node)].flushes_weights) --node;
    return node;
  };
  const int last = static_cast<int>(nodes.size()) - 1;
  int sampled = 0;
  for (int i = last; i >= 0; --i) {
    const GraphNode& node = nodes[static_cast<std::size_t>(i)];
    if (!node.plan.samples_weight) continue;
    INFO(node.name);
    ++sampled;
    const int block = node.kept_block >= 0 ? node.kept_block : node.gradient_block;
    const int read = flush_after(flush_after(i) - 1);
    CHECK(stack.plan.gradient_blocks[static_cast<std::size_t>(block)].end >= 2 * (last - read) + 1);
    for (int j = read; j < i; ++j)
      for (const GraphNode::Dx& dx : nodes[static_cast<std::size_t>(j)].dx)
        CHECK(dx.block != block);
  }
  CHECK(sampled == 6 + 9 + 2);
}

TEST_CASE("what a gate passes on stays where it is read beside", "[graph][beside]") {
  Stack stack(0);
  stack.plan.nodes.resize(1);
  const int x = 0, first = stack.add("first", make_layer("linear", {{"width", kWidth}}), {x});
  const int gated = stack.add("gated", make_layer("gelu"), {first});
  const int second = stack.add("second", make_layer("linear", {{"width", kWidth}}), {x});
  const int sum = stack.add("sum", make_layer("add"), {gated, second});
  const int labels = stack.add("labels", nullptr, {}, {1, Layout::items(1), DType::kI32});
  stack.add("loss", make_layer("softmax_cross_entropy"), {sum, labels});
  stack.plan.gate_nodes = {gated};
  stack.plan.queues = true;
  plan_graph(stack.plan, {.max_items = kItems});
  // The sum gives both its gradient. If the gate passes it on, its kept block is that one.
  const GraphNode& node = stack.node("gated");
  CHECK(node.gradient_block == stack.node("second").gradient_block);
  CHECK(node.dx[0].block != node.kept_block);
}

TEST_CASE("a gate that is no cut edge is refused before anything runs", "[graph]") {
  Stack stack(1);
  const int linear = 1, gelu = 2;
  stack.plan.nodes.pop_back();
  const int sum = stack.add("sum", make_layer("add"), {gelu, linear});
  stack.add("loss", make_layer("softmax_cross_entropy"), {sum, 3});
  stack.plan.gate_nodes = {gelu};
  check_error([&] { plan_graph(stack.plan, {.max_items = kItems}); }, ExitCode::kBadConfig,
              "sampling gate at gelu0: not a cut edge: sum reads linear0",
              "every path from the parameters below to the loss must cross the gate");
}

TEST_CASE("a plan refuses sizes that no memory has, and names the value", "[graph]") {
  const auto fault = [](const GraphLimits& limits, std::int64_t width) {
    Stack stack(1);
    stack.plan.nodes.front().plan.output.width = width;
    return error_text([&] { plan_graph(stack.plan, limits); }, ExitCode::kOutOfMemory);
  };
  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  CHECK(fault({.max_items = kItems}, kWidth).empty());
  CHECK_THAT(fault({.max_items = kHuge}, kHuge), ContainsSubstring("x: 1099511627776 x "));
  CHECK_THAT(fault({.max_items = 1}, kHuge), ContainsSubstring("linear0.weight: "));
  CHECK_THAT(fault({.max_items = kHuge}, 1), ContainsSubstring("linear0: "));
}
